/* Faults that a run on a sanitizer must report before it is believed: see run.py. */
#include <pthread.h>
#include <stdlib.h>

static int counter;

int use_after_free(int value) {
    int *volatile place = malloc(sizeof *place);
    *place = value;
    free(place);
    return *place;
}

int undefined_shift(int bits) { return 1 << bits; }

static void *count(void *unused) {
    for (int i = 0; i < 1000; i++) counter++;
    return unused;
}

int data_race(int value) {
    pthread_t other;
    counter = value;
    if (pthread_create(&other, NULL, count, NULL)) return -1;
    count(NULL);
    pthread_join(other, NULL);
    return counter;
}
