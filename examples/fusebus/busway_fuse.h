/* A client of the two files of a mounted bus, in C99 and C++: one header, nothing to link, no Busway on the machine.
 *
 *     struct busway_fuse bus;
 *     uint64_t prices;
 *     if (busway_fuse_open(&bus, "/tmp/bus", 0) != 0) ...
 *     busway_fuse_channel(&bus, "price/eth", &prices);
 *     busway_fuse_subscribe(&bus, "price/.*", NULL);
 *     busway_fuse_publish(&bus, prices, "3012.5", 6);
 *     busway_fuse_handle(&bus, on_message, NULL);
 *     busway_fuse_close(&bus);
 *
 * Every function returns -1 and sets errno if it fails. A client belongs to one thread at a time. Include it first, or define
 * _POSIX_C_SOURCE as 200809L or more.
 */
#ifndef BUSWAY_FUSE_H
#define BUSWAY_FUSE_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BUSWAY_FUSE_SUBSCRIBE 0
#define BUSWAY_FUSE_UNSUBSCRIBE 1
#define BUSWAY_FUSE_MESSAGE 2

#define BUSWAY_FUSE_ROOM 65536 /* bytes of the first buffer for messages; it grows when a message needs more */
#define BUSWAY_FUSE_MOST (1 << 26) /* its largest size */
#define BUSWAY_FUSE_AT_ONCE 524288 /* longer messages may be cut by the kernel */

/* The header of each message that is read. */
struct busway_fuse_meta {
    uint64_t channel; /* number of its channel: the line of the file `channels`, from 0 */
    uint64_t serno;   /* serial number of the message; a gap shows skipped messages */
    uint64_t client;  /* number of the client that published it */
    uint64_t size;    /* bytes of data */
    uint64_t stride;  /* bytes from the end of this header to the next one */
};

struct busway_fuse_message {
    struct busway_fuse_meta meta;
    const unsigned char *data; /* valid until the next read */
};

struct busway_fuse {
    int bus;      /* the file `fusebus`: give it to poll, select or epoll, with POLLIN */
    int channels; /* the file `channels` */
    unsigned char *buffer;
    size_t room;   /* size of the buffer */
    size_t filled; /* bytes of it that were read */
    size_t next;   /* where the next message begins */
    size_t subscriptions;
};

typedef void (*busway_fuse_handler)(const struct busway_fuse_message *message, void *context);

static inline void busway_fuse_close(struct busway_fuse *bus) {
    if (bus->bus >= 0)
        close(bus->bus);
    if (bus->channels >= 0)
        close(bus->channels);
    free(bus->buffer);
    memset(bus, 0, sizeof *bus);
    bus->bus = bus->channels = -1;
}

static inline int busway_fuse_open_file_(const char *folder, const char *name, int flags) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_RDWR | O_CLOEXEC | flags);
}

/* Become a client of the bus that is mounted there. `flags`: 0, or O_NONBLOCK, with which a read never waits. */
static inline int busway_fuse_open(struct busway_fuse *bus, const char *folder, int flags) {
    int reason;
    memset(bus, 0, sizeof *bus);
    bus->channels = -1;
    bus->bus = busway_fuse_open_file_(folder, "fusebus", flags & O_NONBLOCK);
    if (bus->bus >= 0)
        bus->channels = busway_fuse_open_file_(folder, "channels", 0);
    bus->room = BUSWAY_FUSE_ROOM;
    bus->buffer = (unsigned char *)malloc(bus->room);
    if (bus->bus >= 0 && bus->channels >= 0 && bus->buffer != NULL)
        return 0;
    reason = errno;
    busway_fuse_close(bus);
    errno = reason;
    return -1;
}

/* The number of the line `name`; -1 with ENOENT if there is none. */
static inline int busway_fuse_find_(struct busway_fuse *bus, const char *name, uint64_t *number) {
    char text[4096];
    size_t length = strlen(name), at = 0;
    int same = 1;
    off_t offset = 0;
    uint64_t line = 0;
    for (;;) {
        ssize_t got = pread(bus->channels, text, sizeof text, offset);
        ssize_t i;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        offset += got;
        for (i = 0; i < got; i++) {
            if (text[i] != '\n') {
                same = same && at < length && text[i] == name[at];
                at++;
                continue;
            }
            if (same && at == length) {
                *number = line;
                return 0;
            }
            line++;
            same = 1;
            at = 0;
        }
    }
    errno = ENOENT;
    return -1;
}

/* The number of the channel of this name, which is registered if it is not yet there. */
static inline int busway_fuse_channel(struct busway_fuse *bus, const char *name, uint64_t *number) {
    struct iovec parts[2];
    char end[] = "\n";
    size_t length = strlen(name);
    ssize_t done;
    if (length == 0 || strchr(name, '\n') != NULL) {
        errno = EINVAL;
        return -1;
    }
    if (busway_fuse_find_(bus, name, number) == 0)
        return 0;
    if (errno != ENOENT)
        return -1;
    parts[0].iov_base = (void *)(uintptr_t)name;
    parts[0].iov_len = length;
    parts[1].iov_base = end;
    parts[1].iov_len = 1;
    do
        done = writev(bus->channels, parts, 2);
    while (done < 0 && errno == EINTR);
    if (done < 0)
        return -1;
    return busway_fuse_find_(bus, name, number);
}

/* The name of a channel, with a NUL behind it, in `name`, which has `room` bytes: for messages of channels that a pattern found. */
static inline int busway_fuse_name(struct busway_fuse *bus, uint64_t number, char *name, size_t room) {
    char text[4096];
    size_t at = 0;
    off_t offset = 0;
    uint64_t line = 0;
    for (;;) {
        ssize_t got = pread(bus->channels, text, sizeof text, offset);
        ssize_t i;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0) {
            errno = ENOENT;
            return -1;
        }
        offset += got;
        for (i = 0; i < got && line <= number; i++) {
            if (text[i] == '\n') {
                if (line++ == number) {
                    name[at] = '\0';
                    return 0;
                }
            } else if (line == number) {
                if (at + 1 >= room) {
                    errno = ENAMETOOLONG;
                    return -1;
                }
                name[at++] = text[i];
            }
        }
    }
}

/* One write, with one or two words before the data; returns the result of write(). */
static inline ssize_t busway_fuse_write_(struct busway_fuse *bus, uint64_t *words, int count, const void *data,
                                         size_t size) {
    struct iovec parts[2];
    ssize_t done;
    parts[0].iov_base = words;
    parts[0].iov_len = (size_t)count * sizeof *words;
    parts[1].iov_base = (void *)(uintptr_t)data;
    parts[1].iov_len = size;
    do
        done = writev(bus->bus, parts, size == 0 ? 1 : 2);
    while (done < 0 && errno == EINTR);
    return done;
}

/* Get messages of the channels whose whole name this regular expression matches, old ones first; `number` may be NULL.
 *
 * The number of the subscription comes back as the length of the write, which can't be more than was written: zeros behind the pattern make
 * room for it.
 */
static inline int busway_fuse_subscribe(struct busway_fuse *bus, const char *pattern, uint64_t *number) {
    uint64_t words[1] = {BUSWAY_FUSE_SUBSCRIBE};
    size_t length = strlen(pattern);
    size_t room = length > bus->subscriptions ? length : bus->subscriptions;
    char *text = (char *)calloc(room + 1, 1);
    ssize_t done;
    if (text == NULL)
        return -1;
    memcpy(text, pattern, length);
    done = busway_fuse_write_(bus, words, 1, text, room);
    free(text);
    if (done < 0)
        return -1;
    bus->subscriptions++;
    if (number != NULL)
        *number = (uint64_t)done;
    return 0;
}

static inline int busway_fuse_unsubscribe(struct busway_fuse *bus, uint64_t number) {
    uint64_t words[2] = {BUSWAY_FUSE_UNSUBSCRIBE, 0};
    words[1] = number;
    if (busway_fuse_write_(bus, words, 2, NULL, 0) < 0)
        return -1;
    bus->subscriptions--;
    return 0;
}

/* Publish a message. One that is longer than the bus allows fails with EMSGSIZE. */
static inline int busway_fuse_publish(struct busway_fuse *bus, uint64_t channel, const void *data, size_t size) {
    uint64_t words[2] = {BUSWAY_FUSE_MESSAGE, 0};
    ssize_t done;
    words[1] = channel;
    if (size <= BUSWAY_FUSE_AT_ONCE) {
        done = busway_fuse_write_(bus, words, 2, data, size);
    } else { /* the kernel cuts it, which the bus can detect only if all of it is in one place */
        char *whole = (char *)malloc(sizeof words + size);
        int reason;
        if (whole == NULL)
            return -1;
        memcpy(whole, words, sizeof words);
        memcpy(whole + sizeof words, data, size);
        do
            done = write(bus->bus, whole, sizeof words + size);
        while (done < 0 && errno == EINTR);
        reason = errno;
        free(whole);
        errno = reason;
    }
    if (done >= 0 && (size_t)done < sizeof words + size) {
        errno = EMSGSIZE; /* its first part was taken, the next one refused */
        return -1;
    }
    return done < 0 ? -1 : 0;
}

/* 1 when there is a message to read, 0 when there was none for so many milliseconds; -1 waits for ever. */
static inline int busway_fuse_poll(struct busway_fuse *bus, int milliseconds) {
    struct pollfd one;
    int found;
    if (bus->next < bus->filled)
        return 1;
    one.fd = bus->bus;
    one.events = POLLIN;
    one.revents = 0;
    found = poll(&one, 1, milliseconds);
    if (found <= 0)
        return found;
    if (one.revents & POLLIN)
        return 1;
    errno = EIO;
    return -1;
}

static inline int busway_fuse_grow_(struct busway_fuse *bus, size_t room) {
    unsigned char *larger;
    if (room <= bus->room)
        return 0;
    if (room > BUSWAY_FUSE_MOST) {
        errno = EMSGSIZE;
        return -1;
    }
    larger = (unsigned char *)realloc(bus->buffer, room);
    if (larger == NULL)
        return -1;
    bus->buffer = larger;
    bus->room = room;
    return 0;
}

/* The end of the last message whose header was read. */
static inline size_t busway_fuse_end_(const struct busway_fuse *bus) {
    struct busway_fuse_meta meta;
    size_t at = 0;
    while (at < bus->filled && bus->filled - at >= sizeof meta) {
        memcpy(&meta, bus->buffer + at, sizeof meta);
        if (meta.stride > BUSWAY_FUSE_MOST)
            return at; /* this is no bus, as the reader will detect */
        if (meta.size <= bus->filled - at - sizeof meta && meta.stride > bus->filled - at - sizeof meta)
            return bus->filled; /* only the padding of the last message is missing */
        at += sizeof meta + (size_t)meta.stride;
    }
    return at;
}

/* Read once: as many messages as are there and fit. It waits for the first, or fails with EAGAIN if the file does not wait. */
static inline int busway_fuse_fill_(struct busway_fuse *bus) {
    ssize_t got;
    size_t end;
    bus->next = bus->filled = 0;
    while ((got = read(bus->bus, bus->buffer, bus->room)) < 0) {
        if (errno != EMSGSIZE || busway_fuse_grow_(bus, 2 * bus->room) != 0)
            return -1; /* EINTR too: the caller handles its own signals */
    }
    bus->filled = (size_t)got;
    while ((end = busway_fuse_end_(bus)) > bus->filled) { /* a very long message comes in several parts */
        got = -1;
        if (busway_fuse_grow_(bus, end) == 0)
            got = read(bus->bus, bus->buffer + bus->filled, end - bus->filled);
        if (got < 0 && errno == EINTR)
            continue; /* the rest was read already */
        if (got <= 0) {
            bus->filled = 0;
            errno = got == 0 ? EPROTO : errno;
            return -1;
        }
        bus->filled += (size_t)got;
    }
    return 0;
}

/* The next message: 1, or 0 if a read found none. */
static inline int busway_fuse_read(struct busway_fuse *bus, struct busway_fuse_message *message) {
    size_t left;
    if (bus->next >= bus->filled && busway_fuse_fill_(bus) != 0)
        return -1;
    left = bus->filled - bus->next;
    if (left == 0)
        return 0;
    if (left >= sizeof message->meta)
        memcpy(&message->meta, bus->buffer + bus->next, sizeof message->meta);
    if (left < sizeof message->meta || message->meta.size > left - sizeof message->meta ||
        message->meta.size > message->meta.stride) {
        bus->next = bus->filled = 0;
        errno = EPROTO; /* this is no bus */
        return -1;
    }
    message->data = bus->buffer + bus->next + sizeof message->meta;
    bus->next += sizeof message->meta + (size_t)message->meta.stride;
    if (bus->next > bus->filled) /* the last message may come without padding */
        bus->next = bus->filled;
    return 1;
}

/* Read once, and call the handler for each message; returns their number. */
static inline int busway_fuse_handle(struct busway_fuse *bus, busway_fuse_handler handler, void *context) {
    struct busway_fuse_message message;
    int count = 0;
    do {
        int found = busway_fuse_read(bus, &message);
        if (found < 0)
            return -1;
        if (found == 0)
            break;
        handler(&message, context);
        count++;
    } while (bus->next < bus->filled);
    return count;
}

#ifdef __cplusplus
}
#endif

#endif
