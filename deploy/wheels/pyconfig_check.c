/* Fails to compile where the target's types are not those of pyconfig.h. The headers are this machine's, also for
 * another processor or C library: of what pyconfig.h says, these sizes are what a module's layout depends on. */
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#define CHECK(type, size) _Static_assert(sizeof(type) == size, "pyconfig.h has another size of " #type)
CHECK(_Bool, SIZEOF__BOOL);
CHECK(short, SIZEOF_SHORT);
CHECK(int, SIZEOF_INT);
CHECK(long, SIZEOF_LONG);
CHECK(long long, SIZEOF_LONG_LONG);
CHECK(float, SIZEOF_FLOAT);
CHECK(double, SIZEOF_DOUBLE);
CHECK(long double, SIZEOF_LONG_DOUBLE);
CHECK(size_t, SIZEOF_SIZE_T);
CHECK(void *, SIZEOF_VOID_P);
CHECK(uintptr_t, SIZEOF_UINTPTR_T);
CHECK(wchar_t, SIZEOF_WCHAR_T);
CHECK(off_t, SIZEOF_OFF_T);
CHECK(fpos_t, SIZEOF_FPOS_T);
CHECK(pid_t, SIZEOF_PID_T);
CHECK(time_t, SIZEOF_TIME_T);
CHECK(pthread_t, SIZEOF_PTHREAD_T);
CHECK(pthread_key_t, SIZEOF_PTHREAD_KEY_T);
_Static_assert(_Alignof(long) == ALIGNOF_LONG, "pyconfig.h has another alignment of long");
_Static_assert(_Alignof(size_t) == ALIGNOF_SIZE_T, "pyconfig.h has another alignment of size_t");
#if defined(WORDS_BIGENDIAN) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "both have to be little-endian"
#endif
#if defined(Py_DEBUG) || defined(Py_TRACE_REFS)
#error "an interpreter for debugging has another layout of objects: take a release build"
#endif
