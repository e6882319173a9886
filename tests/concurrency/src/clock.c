/*
 * A clock that a test can set, for a server that is started with this library in LD_PRELOAD: the
 * machine's, and so many seconds as the file TEST_CLOCK holds in binary. libfaketime does not do: a
 * postmaster of PostgreSQL 15 starts background workers in a signal handler, which interrupts the
 * wait in which that library does not change the time, and so it never does in a worker.
 *
 * time() goes with it: pg_ctl compares it with the moment at which a server says that it was started.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile int64_t *offset;
static int (*machine)(struct timeval *, void *);

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("TEST_CLOCK");
	int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

	*(void **) &machine = dlsym(RTLD_NEXT, "gettimeofday");
	if (file >= 0)
	{
		void *map = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);

		offset = map == MAP_FAILED ? NULL : map;
	}
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	int result = machine(now, zone);

	if (offset != NULL)
		now->tv_sec += *offset;
	return result;
}

time_t time(time_t *seconds)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	if (seconds != NULL)
		*seconds = now.tv_sec;
	return now.tv_sec;
}
