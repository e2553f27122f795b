/* What the null provider promises, at the level of verbs: `checks NAME` runs one check, `checks` prints the
 * names. tests/rdma/test_null_provider.py compiles and runs them.
 */
#define _GNU_SOURCE
#include "checks.h"

struct end ends[2];
struct address addresses[2];

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
    {"sends", sends},
    {"writes", writes},
    {"reads", reads},
    {"inlined", inlined},
    {"rights", rights},
    {"keys", keys},
    {"local_keys", local_keys},
    {"not_ready", not_ready},
    {"no_answer", no_answer},
    {"large_to_a_sleeper", large_to_a_sleeper},
    {"queues_are_full", queues_are_full},
    {"states", states},
    {"closing_order", closing_order},
    {"events", events},
    {"wakes_between_processes", wakes_between_processes},
    {"reads_between_processes", reads_between_processes},
    {"a_killed_peer", a_killed_peer},
    {"threads", threads},
    {"faults", faults},
    {"the_port_goes_down", the_port_goes_down},
    {"the_device_goes", the_device_goes},
    {"the_end_of_a_pair", the_end_of_a_pair},
};

int main(int count, char **words)
{
    for (size_t at = 0; at < sizeof(all) / sizeof(*all); at++) {
        if (count < 2) {
            puts(all[at].name);
        } else if (!strcmp(words[1], all[at].name)) {
            all[at].run();
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}
