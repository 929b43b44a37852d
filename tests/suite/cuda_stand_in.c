/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_stand_in.h. Names, numbers and signatures are those of CUDA's driver API. */
#include "tests/suite/cuda_stand_in.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CUDA_API __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, NO_CONTEXT = 201, NOT_READY = 600, GARBAGE = 0xa5, STACK = 8, PINS = 256 };

struct memory {
	struct memory *next;
	uint8_t *device, *alias;
	size_t bytes;
	int fd;
};

struct copy {
	struct copy *next;
	uint64_t number;
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
};

struct stream {
	void *context;
	bool to_host;    /* the last copy was; */
	uint64_t number; /* and of it */
	struct copy *first, **last;
};

struct event {
	struct stream *stream;
	uint64_t number;
	unsigned asked;
};

CUDA_API struct cuda_stand_in cuda_stand_in = {.ordering = 100};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static struct {
	uint8_t *addr;
	size_t bytes;
} pinned[PINS];
static int the_context; /* its address is the context */
static _Thread_local void *stack[STACK];
static _Thread_local unsigned depth;

static int wrong(void)
{
	cuda_stand_in.wrong++;
	return INVALID_VALUE;
}

static struct memory *find(uintptr_t addr, size_t bytes)
{
	for (struct memory *m = memories; m; m = m->next)
		if (addr >= (uintptr_t)m->device && addr - (uintptr_t)m->device < m->bytes &&
			bytes <= m->bytes - (addr - (uintptr_t)m->device))
			return m;
	return NULL;
}

static bool is_pinned(const uint8_t *addr, size_t bytes)
{
	for (unsigned i = 0; i < PINS; i++)
		if (pinned[i].addr && addr >= pinned[i].addr && addr + bytes <= pinned[i].addr + pinned[i].bytes)
			return true;
	return false;
}

/* ---- memory ---- */

CUDA_API int cuMemAlloc_v2(void **device, size_t bytes);
CUDA_API int cuMemFree_v2(void *device);
CUDA_API void *cuda_stand_in_alias(const void *device);

int cuMemAlloc_v2(void **device, size_t bytes)
{
	struct memory *m = calloc(1, sizeof(*m));

	m->bytes = (bytes + 4095) / 4096 * 4096;
	m->fd = memfd_create("device", MFD_CLOEXEC);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)m->bytes) < 0)
		abort();
	m->device = mmap(NULL, m->bytes, PROT_NONE, MAP_SHARED, m->fd, 0);
	m->alias = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->device == MAP_FAILED || m->alias == MAP_FAILED)
		abort();
	pthread_mutex_lock(&lock);
	m->next = memories;
	memories = m;
	pthread_mutex_unlock(&lock);
	*device = m->device;
	return OK;
}

int cuMemFree_v2(void *device)
{
	pthread_mutex_lock(&lock);
	for (struct memory **at = &memories; *at; at = &(*at)->next) {
		struct memory *m = *at;

		if (m->device != device)
			continue;
		*at = m->next;
		munmap(m->device, m->bytes);
		munmap(m->alias, m->bytes);
		close(m->fd);
		free(m);
		break;
	}
	pthread_mutex_unlock(&lock);
	return OK;
}

void *cuda_stand_in_alias(const void *device)
{
	struct memory *m;

	pthread_mutex_lock(&lock);
	m = find((uintptr_t)device, 1);
	pthread_mutex_unlock(&lock);
	return m ? m->alias + ((const uint8_t *)device - m->device) : NULL;
}

CUDA_API int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uintptr_t addr);

int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uintptr_t addr)
{
	const struct memory *m;

	pthread_mutex_lock(&lock);
	m = find(addr, 1);
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0; i < count; i++) {
		if (attributes[i] == 1)
			*(void **)values[i] = m && !cuda_stand_in.pool ? &the_context : NULL;
		else if (attributes[i] == 2)
			*(unsigned *)values[i] = m ? 2 : 0;
		else if (attributes[i] == 8)
			*(bool *)values[i] = false;
		else if (attributes[i] == 9)
			*(int *)values[i] = m ? 0 : -2;
		else
			return wrong();
	}
	return OK;
}

CUDA_API int cuMemHostRegister_v2(void *addr, size_t bytes, unsigned flags);
CUDA_API int cuMemHostUnregister(void *addr);
CUDA_API int cuMemGetHandleForAddressRange(
	void *handle, uintptr_t addr, size_t bytes, int type, unsigned long long flags);

int cuMemHostRegister_v2(void *addr, size_t bytes, unsigned flags)
{
	int rc = INVALID_VALUE;

	if (depth == 0 || (flags & ~9u))
		return wrong();
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PINS && rc != OK; i++) {
		if (pinned[i].addr)
			continue;
		pinned[i].addr = addr;
		pinned[i].bytes = bytes;
		cuda_stand_in.pins++;
		rc = OK;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

int cuMemHostUnregister(void *addr)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PINS; i++) {
		if (pinned[i].addr != addr)
			continue;
		/* Its memory is still there? */
		if (mincore((void *)((uintptr_t)addr / 4096 * 4096), 1, (unsigned char[1]){0}) < 0)
			cuda_stand_in.wrong++;
		pinned[i].addr = NULL;
		cuda_stand_in.pins--;
		pthread_mutex_unlock(&lock);
		return OK;
	}
	pthread_mutex_unlock(&lock);
	return wrong();
}

int cuMemGetHandleForAddressRange(void *handle, uintptr_t addr, size_t bytes, int type, unsigned long long flags)
{
	struct memory *m;
	int fd = -1;

	if (depth == 0)
		return NO_CONTEXT;
	pthread_mutex_lock(&lock);
	m = find(addr, bytes);
	if (m && type == 1 && flags == 0 && addr % 4096 == 0 && bytes % 4096 == 0)
		fd = dup(m->fd);
	pthread_mutex_unlock(&lock);
	if (fd < 0)
		return wrong();
	*(int *)handle = fd;
	return OK;
}

/* ---- devices and contexts ---- */

CUDA_API int cuGetErrorString(int error, const char **text);
CUDA_API int cuDeviceGetAttribute(int *value, int attribute, int device);
CUDA_API int cuDevicePrimaryCtxRetain(void **context, int device);
CUDA_API int cuDevicePrimaryCtxRelease_v2(int device);
CUDA_API int cuCtxPushCurrent_v2(void *context);
CUDA_API int cuCtxPopCurrent_v2(void **context);

int cuGetErrorString(int error, const char **text)
{
	*text = error == 700 ? "an illegal memory access was encountered" : NULL;
	return *text ? OK : INVALID_VALUE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	if (device != 0 || (attribute != 118 && attribute != 124))
		return wrong();
	*value = attribute == 124 ? cuda_stand_in.dma_buf : cuda_stand_in.ordering;
	return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (device != 0)
		return wrong();
	*context = &the_context;
	cuda_stand_in.contexts_retained++;
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	cuda_stand_in.contexts_retained--;
	return device == 0 ? OK : wrong();
}

int cuCtxPushCurrent_v2(void *context)
{
	if (context != &the_context || depth == STACK)
		return wrong();
	stack[depth++] = context;
	return OK;
}

int cuCtxPopCurrent_v2(void **context)
{
	if (depth == 0)
		return wrong();
	*context = stack[--depth];
	return OK;
}

/* ---- streams and events ---- */

CUDA_API int cuStreamCreate(struct stream **out, unsigned flags);
CUDA_API int cuStreamDestroy_v2(struct stream *s);
CUDA_API int cuStreamSynchronize(struct stream *s);
CUDA_API int cuEventCreate(struct event **out, unsigned flags);
CUDA_API int cuEventDestroy_v2(struct event *e);
CUDA_API int cuEventRecord(struct event *e, struct stream *s);
CUDA_API int cuEventQuery(struct event *e);
CUDA_API int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, struct stream *s);
CUDA_API int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, struct stream *s);

int cuStreamCreate(struct stream **out, unsigned flags)
{
	struct stream *s;

	if (depth == 0 || flags != 1)
		return wrong();
	s = calloc(1, sizeof(*s));
	s->context = stack[depth - 1];
	s->last = &s->first;
	*out = s;
	cuda_stand_in.streams++;
	return OK;
}

/* What a real engine does between two questions. Under the lock. */
static void run_until(struct stream *s, uint64_t number)
{
	while (s->first && s->first->number <= number) {
		struct copy *c = s->first;
		struct memory *from = find((uintptr_t)c->from, c->bytes), *to = find((uintptr_t)c->to, c->bytes);
		const uint8_t *host_from = from ? from->alias + (c->from - from->device) : c->from;
		uint8_t *host_to = to ? to->alias + (c->to - to->device) : c->to;

		/* Device memory that was freed meanwhile, or host memory that is not pinned any more. */
		if ((from != NULL) == (to != NULL) || !is_pinned(from ? c->to : c->from, c->bytes))
			wrong();
		else
			memcpy(host_to, host_from, c->bytes);
		s->first = c->next;
		if (!s->first)
			s->last = &s->first;
		free(c);
		cuda_stand_in.waiting--;
	}
}

int cuStreamSynchronize(struct stream *s)
{
	pthread_mutex_lock(&lock);
	run_until(s, s->number);
	pthread_mutex_unlock(&lock);
	return OK;
}

int cuStreamDestroy_v2(struct stream *s)
{
	if (s->first)
		wrong();
	free(s);
	cuda_stand_in.streams--;
	return OK;
}

int cuEventCreate(struct event **out, unsigned flags)
{
	if (depth == 0 || flags != 2)
		return wrong();
	*out = calloc(1, sizeof(**out));
	cuda_stand_in.events++;
	return OK;
}

int cuEventDestroy_v2(struct event *e)
{
	free(e);
	cuda_stand_in.events--;
	return OK;
}

int cuEventRecord(struct event *e, struct stream *s)
{
	if (depth == 0 || stack[depth - 1] != s->context)
		return wrong();
	*e = (struct event){.stream = s, .number = s->number};
	cuda_stand_in.events_recorded++;
	return OK;
}

int cuEventQuery(struct event *e)
{
	if (cuda_stand_in.fail)
		return cuda_stand_in.fail;
	if (e->asked++ < cuda_stand_in.queries + (e->stream->to_host ? cuda_stand_in.queries_to_host : 0))
		return NOT_READY;
	pthread_mutex_lock(&lock);
	run_until(e->stream, e->number);
	pthread_mutex_unlock(&lock);
	return OK;
}

static int begin(void *to, const void *from, size_t bytes, struct stream *s, bool to_device)
{
	struct copy *c = calloc(1, sizeof(*c));
	const void *device = to_device ? to : from, *host = to_device ? from : to;
	int rc = OK;

	pthread_mutex_lock(&lock);
	if (depth == 0 || stack[depth - 1] != s->context || !find((uintptr_t)device, bytes) || !is_pinned(host, bytes))
		rc = wrong();
	if (rc == OK) {
		if (!to_device)
			memset(to, GARBAGE, bytes);
		s->to_host = !to_device;
		*c = (struct copy){.number = ++s->number, .to = to, .from = from, .bytes = bytes};
		*s->last = c;
		s->last = &c->next;
		cuda_stand_in.copies++;
		cuda_stand_in.waiting++;
	} else {
		free(c);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, struct stream *s)
{
	return begin(to, (const void *)from, bytes, s, false);
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, struct stream *s)
{
	return begin((void *)to, from, bytes, s, true);
}
