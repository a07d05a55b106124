/* Two channels, one regular expression, two messages: what the header can do, in a page.
 *
 *     cc -std=c99 -Wall -Wextra chat.c -o chat
 *     ./chat DIR
 */
#include "busway_fuse.h"

static struct busway_fuse bus;

static void show(const struct busway_fuse_message *message, void *context) {
    char name[512];
    int *shown = (int *)context;
    if (busway_fuse_name(&bus, message->meta.channel, name, sizeof name) != 0)
        perror("channel");
    else
        printf("%s: %.*s\n", name, (int)message->meta.size, (const char *)message->data);
    ++*shown;
}

static int fail(const char *what) {
    perror(what);
    busway_fuse_close(&bus);
    return 1;
}

int main(int count, char *words[]) {
    const char *texts[2] = {"Hello World!", "Goodbye!"};
    uint64_t channels[2], all;
    int i, shown = 0;
    if (count != 2) {
        fprintf(stderr, "usage: %s DIR\n", words[0]);
        return 2;
    }
    if (busway_fuse_open(&bus, words[1], 0) != 0)
        return fail(words[1]);
    if (busway_fuse_channel(&bus, "CHANNEL_A", &channels[0]) != 0 ||
        busway_fuse_channel(&bus, "CHANNEL_B", &channels[1]) != 0)
        return fail("channel");
    if (busway_fuse_subscribe(&bus, "CHANNEL_.*", &all) != 0)
        return fail("subscribe");
    for (i = 0; i < 2; i++) {
        if (busway_fuse_publish(&bus, channels[i], texts[i], strlen(texts[i])) != 0)
            return fail("publish");
        if (busway_fuse_handle(&bus, show, &shown) < 0)
            return fail("read");
    }
    if (busway_fuse_unsubscribe(&bus, all) != 0)
        return fail("unsubscribe");
    if (busway_fuse_publish(&bus, channels[0], "for others", 10) != 0)
        return fail("publish");
    i = busway_fuse_poll(&bus, 0);
    if (i < 0)
        return fail("poll");
    printf("%d messages, and %s after the subscription was given up\n", shown, i ? "more" : "none");
    busway_fuse_close(&bus);
    return 0;
}
