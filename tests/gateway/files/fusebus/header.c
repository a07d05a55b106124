/* Every function of busway_fuse.h by a word on standard input, for tests that ask for it from outside. */
#include "busway_fuse.h"

static struct busway_fuse bus;

static void said(const char *what, int outcome) {
    if (outcome < 0)
        printf("%s failed %d\n", what, errno);
}

static void count(const struct busway_fuse_message *message, void *context) {
    uint64_t *total = (uint64_t *)context;
    total[0]++;
    total[1] += message->meta.size;
}

static void sum(const struct busway_fuse_message *message) {
    uint64_t bytes = 0, i;
    for (i = 0; i < message->meta.size; i++)
        bytes += message->data[i];
    printf("message %llu %llu %llu %llu %llu %llu\n", (unsigned long long)message->meta.channel,
           (unsigned long long)message->meta.serno, (unsigned long long)message->meta.client,
           (unsigned long long)message->meta.size, (unsigned long long)message->meta.stride, (unsigned long long)bytes);
}

int main(int words, char *folder[]) {
    char line[2048], word[32], rest[1024];
    if (words != 3 || busway_fuse_open(&bus, folder[1], folder[2][0] == 'n' ? O_NONBLOCK : 0) != 0) {
        printf("open failed %d\n", errno);
        return 1;
    }
    puts("open");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned long long first = 0, second = 0;
        uint64_t number = 0;
        int outcome = -1;
        rest[0] = '\0';
        if (sscanf(line, "%31s %1023[^\n]", word, rest) < 1)
            continue;
        sscanf(rest, "%llu %llu", &first, &second);
        if (strcmp(word, "channel") == 0) {
            if ((outcome = busway_fuse_channel(&bus, rest, &number)) == 0)
                printf("channel %llu\n", (unsigned long long)number);
        } else if (strcmp(word, "name") == 0) {
            char name[64];
            if ((outcome = busway_fuse_name(&bus, first, name, sizeof name)) == 0)
                printf("name %s\n", name);
        } else if (strcmp(word, "subscribe") == 0) {
            if ((outcome = busway_fuse_subscribe(&bus, rest, &number)) == 0)
                printf("subscribe %llu\n", (unsigned long long)number);
        } else if (strcmp(word, "unsubscribe") == 0) {
            if ((outcome = busway_fuse_unsubscribe(&bus, first)) == 0)
                puts("unsubscribe");
        } else if (strcmp(word, "publish") == 0) { /* channel, size */
            unsigned char *data = (unsigned char *)malloc((size_t)second + 1);
            memset(data, 1, (size_t)second + 1);
            if ((outcome = busway_fuse_publish(&bus, first, data, (size_t)second)) == 0)
                puts("publish");
            free(data);
        } else if (strcmp(word, "poll") == 0) {
            if ((outcome = busway_fuse_poll(&bus, (int)first)) >= 0)
                printf("poll %d\n", outcome);
        } else if (strcmp(word, "read") == 0) {
            struct busway_fuse_message message;
            if ((outcome = busway_fuse_read(&bus, &message)) == 1)
                sum(&message);
        } else if (strcmp(word, "handle") == 0) {
            uint64_t total[2] = {0, 0};
            if ((outcome = busway_fuse_handle(&bus, count, total)) >= 0)
                printf("handle %d %llu %llu\n", outcome, (unsigned long long)total[0], (unsigned long long)total[1]);
        }
        said(word, outcome);
        fflush(stdout);
    }
    busway_fuse_close(&bus);
    return 0;
}
