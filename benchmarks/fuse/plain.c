/* A file system of one file that keeps one message: the least that a bus of this shape can do, to compare with.
 *
 * A write of the document's message format (two words, type and channel, then the payload) stores the payload behind the 40 bytes of
 * metadata. A read returns both, padded, if this open file has not read them yet, else nothing. One thread, libfuse's low-level calls, no
 * page cache: as the original. No subscriptions, no history, no polling, no bus behind it.
 */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LARGEST (1 << 20)
#define ALIGN 16
#define FILE_INODE 2
#define FILE_NAME "fusebus"
#define MESSAGE 2
#define TIMEOUT 1.0

struct meta {
    uint64_t channel, serno, client, size, stride;
};

struct opened {
    uint64_t number; /* of this client */
    uint64_t next;   /* the first serial number that it has not read */
};

static struct {
    struct meta meta;
    char data[LARGEST + ALIGN];
} kept;
static uint64_t clients, published;

static int fill(fuse_ino_t inode, struct stat *about) {
    memset(about, 0, sizeof *about);
    about->st_ino = inode;
    about->st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0600;
    about->st_nlink = inode == FUSE_ROOT_ID ? 2 : 1;
    return inode == FUSE_ROOT_ID || inode == FILE_INODE;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param entry = {.ino = FILE_INODE, .attr_timeout = TIMEOUT, .entry_timeout = TIMEOUT};
    if (parent != FUSE_ROOT_ID || strcmp(name, FILE_NAME) != 0 || !fill(FILE_INODE, &entry.attr))
        fuse_reply_err(request, ENOENT);
    else
        fuse_reply_entry(request, &entry);
}

static void do_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    struct stat about;
    (void)file;
    if (fill(inode, &about))
        fuse_reply_attr(request, &about, TIMEOUT);
    else
        fuse_reply_err(request, ENOENT);
}

static void do_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    struct opened *one = malloc(sizeof *one);
    (void)inode;
    if (one == NULL) {
        fuse_reply_err(request, ENOMEM);
        return;
    }
    one->number = clients++;
    one->next = 0;
    file->fh = (uintptr_t)one;
    file->direct_io = 1;
    file->nonseekable = 1;
    fuse_reply_open(request, file);
}

static void do_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)inode;
    free((struct opened *)(uintptr_t)file->fh);
    fuse_reply_err(request, 0);
}

static void do_write(fuse_req_t request, fuse_ino_t inode, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *file) {
    uint64_t words[2];
    size_t payload = size - sizeof words;
    (void)inode, (void)offset;
    if (size < sizeof words || payload > LARGEST) {
        fuse_reply_err(request, EINVAL);
        return;
    }
    memcpy(words, data, sizeof words);
    if (words[0] != MESSAGE) {
        fuse_reply_err(request, EINVAL);
        return;
    }
    kept.meta.channel = words[1];
    kept.meta.serno = published++;
    kept.meta.client = ((struct opened *)(uintptr_t)file->fh)->number;
    kept.meta.size = payload;
    kept.meta.stride = (payload + ALIGN - 1) / ALIGN * ALIGN;
    memcpy(kept.data, data + sizeof words, payload);
    memset(kept.data + payload, 0, kept.meta.stride - payload);
    fuse_reply_write(request, size);
}

static void do_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info *file) {
    struct opened *one = (struct opened *)(uintptr_t)file->fh;
    size_t whole = sizeof kept.meta + kept.meta.stride;
    (void)inode, (void)offset;
    if (one->next >= published)
        fuse_reply_buf(request, NULL, 0);
    else if (size < whole)
        fuse_reply_err(request, EINVAL);
    else {
        one->next = published;
        fuse_reply_buf(request, (char *)&kept, whole);
    }
}

static const struct fuse_lowlevel_ops calls = {
    .lookup = do_lookup,
    .getattr = do_getattr,
    .open = do_open,
    .release = do_release,
    .read = do_read,
    .write = do_write,
};

int main(int count, char *words[]) {
    struct fuse_args arguments = FUSE_ARGS_INIT(1, words);
    struct fuse_session *session;
    int outcome = 1;
    if (count != 2) {
        fprintf(stderr, "usage: %s DIR\n", words[0]);
        return 2;
    }
    session = fuse_session_new(&arguments, &calls, sizeof calls, NULL);
    if (session == NULL)
        return 1;
    if (fuse_set_signal_handlers(session) == 0) {
        if (fuse_session_mount(session, words[1]) == 0) {
            puts("{\"mounted\": true}");
            fflush(stdout);
            outcome = fuse_session_loop(session) < 0;
            fuse_session_unmount(session);
        }
        fuse_remove_signal_handlers(session);
    }
    fuse_session_destroy(session);
    return outcome;
}
