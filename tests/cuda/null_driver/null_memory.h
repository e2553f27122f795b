/* Memory of the null driver, as its sources share it. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))
#define PAGE 4096
#define MOST_MAPPERS 60

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, MAP_FAILED_ = 205, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, NOT_REGISTERED = 713,
       NOT_SUPPORTED = 801 };

typedef uint64_t pointer_t;

struct shared_memory {                  /* the first page of an allocation's file */
    _Atomic pid_t mappers[MOST_MAPPERS];
};

struct piece;                           /* of physical memory: see null_virtual.c */

struct allocation {                     /* or a mapped piece */
    struct allocation *next;
    char name[40];
    char *address;                      /* the device pointer: the host must not touch it */
    char *data;                         /* the same bytes, for copies of this driver */
    struct shared_memory *shared;
    size_t size;
    uint64_t number;                    /* of all allocations that this process has seen */
    int device, opened;                 /* opened: another process's, and how often */
    struct piece *piece;
    int accessible;                     /* of a piece */
};

extern pthread_mutex_t null_lock;       /* of the allocations */
extern struct allocation *null_allocations;
extern uint64_t null_numbers;

struct allocation *null_find(pointer_t pointer);
void null_unlist(struct allocation *one);
int null_entered(void);
long null_number(const char *variable, long otherwise);
/* attributes of a piece that differ from those of an allocation; 0: this one does not */
int null_piece_attribute(void *value, int attribute, struct allocation *one);
