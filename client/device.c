/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is needed of CUDA's driver is declared here by hand, as its ABI has it: the build needs no header of CUDA, and
 * programs run where there is none.
 *
 * Whether a pointer is a device's is asked of the driver each time, unless it was registered: an address that was freed
 * may come back as memory of another kind, and nothing would tell. Only "there is no CUDA here" is remembered, until
 * the process loads another library.
 *
 * Copies run on streams of our own, those to the device and those from it at once, each in the order in which they were
 * begun: on one stream an engine would wait for the other. Chunks are small for a copy engine, so those of a key that
 * lie side by side are joined into pieces; behind a piece comes an event, and what was begun before an event on its
 * stream is done when it is.
 */
#include "client/device.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	DEVICE_MARKS = 64, /* events under way; beyond that many, a later one speaks for more copies */
};

/* ---- the driver: names and numbers are those of cuda.h ---- */

enum {
	CUDA_OK = 0,
	CUDA_NOT_READY = 600,
	CUDA_ATTRIBUTE_WRITES_ORDERING = 118, /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING */
	CUDA_ATTRIBUTE_DMA_BUF = 124,         /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
	CUDA_ORDERING_OWNER = 100,            /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER */
	CUDA_POINTER_CONTEXT = 1,             /* CU_POINTER_ATTRIBUTE_... */
	CUDA_POINTER_MEMORY_TYPE = 2,
	CUDA_POINTER_IS_MANAGED = 8,
	CUDA_POINTER_DEVICE_ORDINAL = 9,
	CUDA_MEMORY_DEVICE = 2, /* CU_MEMORYTYPE_DEVICE */
	CUDA_HOST_PORTABLE = 1, /* CU_MEMHOSTREGISTER_... */
	CUDA_HOST_READ_ONLY = 8,
	CUDA_STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
	CUDA_EVENT_NO_TIMING = 2,     /* CU_EVENT_DISABLE_TIMING */
	CUDA_RANGE_DMA_BUF_FD = 1,    /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
};

struct cuda {
	int (*error_string)(int error, const char **text);
	int (*device_attribute)(int *value, int attribute, int device);
	int (*context_retain)(void **context, int device);
	int (*context_release)(int device);
	int (*context_push)(void *context);
	int (*context_pop)(void **context);
	int (*pointer_attributes)(unsigned count, int *attributes, void **values, uintptr_t address);
	int (*host_register)(void *addr, size_t bytes, unsigned flags);
	int (*host_unregister)(void *addr);
	int (*stream_create)(void **stream, unsigned flags);
	int (*stream_destroy)(void *stream);
	int (*stream_synchronize)(void *stream);
	int (*event_create)(void **event, unsigned flags);
	int (*event_destroy)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_query)(void *event);
	int (*copy_to_host)(void *to, uintptr_t from, size_t bytes, void *stream);
	int (*copy_to_device)(uintptr_t to, const void *from, size_t bytes, void *stream);
	/* since 11.7; else NULL */
	int (*range_handle)(void *handle, uintptr_t addr, size_t bytes, int type, unsigned long long flags);
};

#define CUDA_NAME(member, name)                          \
	{                                                \
		offsetof(struct cuda, member), "cu" name \
	}

static const struct device_name {
	size_t at;
	const char *name;
} device_names[] = {
	CUDA_NAME(error_string, "GetErrorString"),
	CUDA_NAME(device_attribute, "DeviceGetAttribute"),
	CUDA_NAME(context_retain, "DevicePrimaryCtxRetain"),
	CUDA_NAME(context_release, "DevicePrimaryCtxRelease_v2"),
	CUDA_NAME(context_push, "CtxPushCurrent_v2"),
	CUDA_NAME(context_pop, "CtxPopCurrent_v2"),
	CUDA_NAME(pointer_attributes, "PointerGetAttributes"),
	CUDA_NAME(host_register, "MemHostRegister_v2"),
	CUDA_NAME(host_unregister, "MemHostUnregister"),
	CUDA_NAME(stream_create, "StreamCreate"),
	CUDA_NAME(stream_destroy, "StreamDestroy_v2"),
	CUDA_NAME(stream_synchronize, "StreamSynchronize"),
	CUDA_NAME(event_create, "EventCreate"),
	CUDA_NAME(event_destroy, "EventDestroy_v2"),
	CUDA_NAME(event_record, "EventRecord"),
	CUDA_NAME(event_query, "EventQuery"),
	CUDA_NAME(copy_to_host, "MemcpyDtoHAsync_v2"),
	CUDA_NAME(copy_to_device, "MemcpyHtoDAsync_v2"),
};

static struct cuda device_cuda;
static _Atomic(const struct cuda *) device_driver; /* released when device_cuda is filled in */
static atomic_ullong device_loads;                 /* of libraries, when last looked */
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct cuda *device_api(void)
{
	return atomic_load_explicit(&device_driver, memory_order_acquire);
}

/* The handle is kept: from now on the driver stays. */
static void device_bind(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);

	if (!library)
		return;
	for (size_t i = 0; i < sizeof(device_names) / sizeof(device_names[0]); i++) {
		void *symbol = dlsym(library, device_names[i].name);

		if (!symbol) {
			dlclose(library);
			return;
		}
		memcpy((char *)&device_cuda + device_names[i].at, &symbol, sizeof(symbol));
	}
	*(void **)&device_cuda.range_handle = dlsym(library, "cuMemGetHandleForAddressRange");
	atomic_store_explicit(&device_driver, &device_cuda, memory_order_release);
}

static int device_count_loads(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	*(unsigned long long *)arg = info->dlpi_adds;
	return 1;
}

void device_look(void)
{
	unsigned long long loads = 0;

	if (device_api())
		return;
	dl_iterate_phdr(device_count_loads, &loads);
	if (loads == atomic_load_explicit(&device_loads, memory_order_relaxed))
		return;
	pthread_mutex_lock(&device_lock);
	if (!device_api())
		device_bind();
	atomic_store_explicit(&device_loads, loads, memory_order_relaxed);
	pthread_mutex_unlock(&device_lock);
}

static const char *device_says(int error)
{
	const char *text = NULL;

	if (device_api()->error_string(error, &text) != CUDA_OK || !text)
		return "an error that CUDA does not name";
	return text;
}

static void device_leave(void)
{
	void *context;

	device_api()->context_pop(&context);
}

bool device_holds(const void *addr, struct device_place *out)
{
	const struct cuda *cuda = device_api();
	int attributes[] = {
		CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_IS_MANAGED, CUDA_POINTER_CONTEXT, CUDA_POINTER_DEVICE_ORDINAL};
	unsigned type = 0, managed = 0; /* of the latter CUDA fills in one byte */
	struct device_place place = {NULL, 0};
	void *values[] = {&type, &managed, &place.context, &place.ordinal};

	if (!cuda || !addr)
		return false;
	/* Of a pointer that it does not know CUDA says nothing, and before cuInit() that it knows none. */
	if (cuda->pointer_attributes(4, attributes, values, (uintptr_t)addr) != CUDA_OK)
		return false;
	if (type != CUDA_MEMORY_DEVICE || managed)
		return false;
	*out = place;
	return true;
}

/* The driver gives a range's handle in a context only, whatever thread asks. An error of CUDA. */
static int device_range_handle(const struct device_place *place, uintptr_t from, size_t bytes, int *fd)
{
	const struct cuda *cuda = device_api();
	void *context = place->context;
	int rc = context ? CUDA_OK : cuda->context_retain(&context, place->ordinal);

	if (rc != CUDA_OK)
		return rc;
	rc = cuda->context_push(context);
	if (rc == CUDA_OK) {
		rc = cuda->range_handle(fd, from, bytes, CUDA_RANGE_DMA_BUF_FD, 0);
		device_leave();
	}
	if (!place->context)
		cuda->context_release(place->ordinal);
	return rc;
}

int device_export(const struct device_place *place, const void *addr, size_t bytes, uint64_t *offset)
{
	const struct cuda *cuda = device_api();
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = (uintptr_t)addr / page * page, to = ((uintptr_t)addr + bytes + page - 1) / page * page;
	int dma_buf = 0, ordering = 0, fd = -1;

	if (!cuda || !cuda->range_handle ||
		cuda->device_attribute(&dma_buf, CUDA_ATTRIBUTE_DMA_BUF, place->ordinal) != CUDA_OK || !dma_buf)
		return -ENOTSUP;
	if (cuda->device_attribute(&ordering, CUDA_ATTRIBUTE_WRITES_ORDERING, place->ordinal) != CUDA_OK ||
		ordering < CUDA_ORDERING_OWNER)
		return -ENOTSUP;
	if (device_range_handle(place, from, to - from, &fd) != CUDA_OK || fd < 0)
		return -ENOTSUP;
	*offset = (uintptr_t)addr - from;
	return fd;
}

/* ---- devices ---- */

struct device_mark {
	void *event;
	uint32_t copies; /* that it speaks for */
};

/* Copies that are joined, and not begun yet. */
struct device_piece {
	const void *owner;
	char *to;
	const char *from;
	size_t bytes;
};

/* Copies of one direction. */
struct device_way {
	void *stream;
	struct device_piece piece;
	void **cookies; /* [devices.copies_max] a ring, the oldest copy first */
	uint32_t cookie_first, cookie_count;
	uint32_t ready;                         /* the first so many are done */
	uint32_t unmarked;                      /* the last so many have no event behind them yet */
	struct device_mark marks[DEVICE_MARKS]; /* a ring; events are made when they are needed first */
	uint32_t mark_first, mark_count;
};

enum { DEVICE_FETCH, DEVICE_STORE, DEVICE_WAYS };

struct device {
	struct device *next;
	void *context;
	int ordinal;
	bool primary; /* the context was retained by us */
	struct device_way ways[DEVICE_WAYS];
};

static void devices_fail(struct devices *d, int error, const char *what)
{
	if (d->failure.code == 0)
		err_set(&d->failure, -EIO, "CUDA cannot %s: %s", what, device_says(error));
}

static int device_enter(const struct device *v)
{
	return device_api()->context_push(v->context);
}

static void device_free(struct device *v)
{
	const struct cuda *cuda = device_api();
	bool entered = v->context && device_enter(v) == CUDA_OK;

	for (struct device_way *w = v->ways; w < v->ways + DEVICE_WAYS; w++) {
		for (unsigned i = 0; entered && i < DEVICE_MARKS; i++)
			if (w->marks[i].event)
				cuda->event_destroy(w->marks[i].event);
		if (entered && w->stream)
			cuda->stream_destroy(w->stream);
		free(w->cookies);
	}
	if (entered)
		device_leave();
	if (v->primary)
		cuda->context_release(v->ordinal);
	free(v);
}

/* Its streams, in its context. An error of CUDA. */
static int device_open(struct device *v)
{
	const struct cuda *cuda = device_api();
	int rc = device_enter(v);

	if (rc != CUDA_OK)
		return rc;
	for (struct device_way *w = v->ways; w < v->ways + DEVICE_WAYS && rc == CUDA_OK; w++) {
		rc = cuda->stream_create(&w->stream, CUDA_STREAM_NON_BLOCKING);
		if (rc == CUDA_OK)
			rc = cuda->event_create(&w->marks[0].event, CUDA_EVENT_NO_TIMING);
	}
	device_leave();
	return rc;
}

static int device_create(uint32_t copies_max, const struct device_place *place, struct device **out, struct err *e)
{
	struct device *v = calloc(1, sizeof(*v));
	bool room = v != NULL;
	int rc = CUDA_OK;

	for (unsigned i = 0; room && i < DEVICE_WAYS; i++)
		room = (v->ways[i].cookies = calloc(copies_max, sizeof(*v->ways[i].cookies))) != NULL;
	if (!room) {
		if (v)
			device_free(v);
		return err_set(e, -ENOMEM, "no memory for copies from and to a GPU");
	}
	v->context = place->context;
	v->ordinal = place->ordinal;
	if (!v->context) {
		rc = device_api()->context_retain(&v->context, v->ordinal);
		v->primary = rc == CUDA_OK;
	}
	if (rc == CUDA_OK)
		rc = device_open(v);
	if (rc == CUDA_OK) {
		*out = v;
		return 0;
	}
	device_free(v);
	return err_set(e, -EIO, "CUDA cannot make a stream on device %d: %s", place->ordinal, device_says(rc));
}

int devices_get(struct devices *d, const struct device_place *place, struct device **out, struct err *e)
{
	struct device *v;
	int rc;

	for (v = d->first; v; v = v->next) {
		if (place->context ? v->context == place->context : v->primary && v->ordinal == place->ordinal)
			break;
	}
	if (!v) {
		rc = device_create(d->copies_max, place, &v, e);
		if (rc < 0)
			return rc;
		v->next = d->first;
		d->first = v;
	}
	*out = v;
	return 0;
}

void devices_pin(struct devices *d, struct device *device, const void *addr, size_t bytes, bool read_only)
{
	unsigned flags = CUDA_HOST_PORTABLE | (read_only ? CUDA_HOST_READ_ONLY : 0u);
	void *host = (void *)(uintptr_t)addr;
	int rc;

	for (unsigned i = 0; i < d->pin_count; i++)
		if (d->pins[i] == host)
			return;
	if (d->pin_count == DEVICE_PINS || device_enter(device) != CUDA_OK)
		return;
	rc = device_api()->host_register(host, bytes, flags);
	device_leave();
	/* What cannot be pinned is not tried again: it stands in the list too, and nothing comes of unpinning it. */
	(void)rc;
	d->pins[d->pin_count++] = host;
}

void devices_unpin(struct devices *d)
{
	if (d->pin_count == 0 || device_enter(d->first) != CUDA_OK)
		return;
	while (d->pin_count > 0)
		device_api()->host_unregister(d->pins[--d->pin_count]);
	device_leave();
}

/* ---- copies ---- */

/* Begins what was joined. In the device's context. */
static void device_begin(struct devices *d, const struct device *v, struct device_way *w)
{
	const struct cuda *cuda = device_api();
	struct device_piece *p = &w->piece;
	int rc = CUDA_OK;

	if (p->bytes && w == &v->ways[DEVICE_STORE])
		rc = cuda->copy_to_device((uintptr_t)p->to, p->from, p->bytes, w->stream);
	else if (p->bytes)
		rc = cuda->copy_to_host(p->to, (uintptr_t)p->from, p->bytes, w->stream);
	p->bytes = 0;
	if (rc != CUDA_OK)
		devices_fail(d, rc, "copy from or to a GPU");
}

/* Puts an event behind all that was begun; when all events are under way, the next one will do. */
static void device_mark(struct devices *d, struct device_way *w)
{
	const struct cuda *cuda = device_api();
	struct device_mark *mark = &w->marks[(w->mark_first + w->mark_count) % DEVICE_MARKS];
	int rc = CUDA_OK;

	if (w->unmarked == 0 || w->mark_count == DEVICE_MARKS)
		return;
	if (!mark->event)
		rc = cuda->event_create(&mark->event, CUDA_EVENT_NO_TIMING);
	if (rc == CUDA_OK)
		rc = cuda->event_record(mark->event, w->stream);
	if (rc != CUDA_OK) {
		devices_fail(d, rc, "record an event");
		return;
	}
	mark->copies = w->unmarked;
	w->mark_count++;
	w->unmarked = 0;
}

/* Begins the piece and marks it. */
static void device_flush(struct devices *d, const struct device *v, struct device_way *w, bool mark)
{
	int rc;

	if (w->piece.bytes == 0 && (!mark || w->unmarked == 0))
		return;
	rc = device_enter(v);
	if (rc != CUDA_OK) {
		devices_fail(d, rc, "enter its context");
		return;
	}
	device_begin(d, v, w);
	if (mark)
		device_mark(d, w);
	device_leave();
}

void devices_flush(struct devices *d)
{
	for (struct device *v = d->first; v && d->copies; v = v->next)
		for (unsigned i = 0; i < DEVICE_WAYS; i++)
			device_flush(d, v, &v->ways[i], true);
}

static void device_copy(
	struct devices *d, const struct device *v, struct device_way *w, const struct device_piece *add, void *cookie)
{
	struct device_piece *p = &w->piece;

	if (p->bytes && p->owner == add->owner && p->to + p->bytes == add->to && p->from + p->bytes == add->from) {
		p->bytes += add->bytes;
	} else {
		device_flush(d, v, w, false);
		*p = *add;
	}
	w->cookies[(w->cookie_first + w->cookie_count) % d->copies_max] = cookie;
	w->cookie_count++;
	w->unmarked++;
	d->copies++;
	if (p->bytes >= DEVICE_PIECE_BYTES)
		device_flush(d, v, w, true);
}

void device_fetch(struct devices *d, struct device *device, void *host, const void *from, size_t bytes,
	const void *owner, void *cookie)
{
	const struct device_piece add = {.owner = owner, .to = host, .from = from, .bytes = bytes};

	device_copy(d, device, &device->ways[DEVICE_FETCH], &add, cookie);
}

void device_store(struct devices *d, struct device *device, void *to, const void *host, size_t bytes, const void *owner,
	void *cookie)
{
	const struct device_piece add = {.owner = owner, .to = to, .from = host, .bytes = bytes};

	device_copy(d, device, &device->ways[DEVICE_STORE], &add, cookie);
}

/* Asks the oldest event. */
static void device_ask(struct devices *d, const struct device *v, struct device_way *w)
{
	struct device_mark *mark = &w->marks[w->mark_first];
	int rc = device_enter(v);

	if (rc == CUDA_OK) {
		rc = device_api()->event_query(mark->event);
		device_leave();
	}
	if (rc == CUDA_NOT_READY)
		return;
	if (rc != CUDA_OK) {
		devices_fail(d, rc, "finish a copy from or to a GPU");
		return;
	}
	w->ready += mark->copies;
	w->mark_first = (w->mark_first + 1) % DEVICE_MARKS;
	w->mark_count--;
}

/* The cookie of the oldest copy this way, when that is done; else NULL. */
static void *device_done(struct devices *d, const struct device *v, struct device_way *w)
{
	void *cookie;

	if (w->ready == 0 && w->mark_count > 0)
		device_ask(d, v, w);
	if (w->ready == 0)
		return NULL;
	cookie = w->cookies[w->cookie_first];
	w->cookie_first = (w->cookie_first + 1) % d->copies_max;
	w->cookie_count--;
	w->ready--;
	d->copies--;
	return cookie;
}

void *devices_done(struct devices *d)
{
	for (struct device *v = d->first; v; v = v->next)
		for (unsigned i = 0; i < DEVICE_WAYS && d->failure.code == 0; i++) {
			void *cookie = device_done(d, v, &v->ways[i]);

			if (cookie)
				return cookie;
		}
	return NULL;
}

int device_store_now(struct device *device, void *to, const void *host, size_t bytes, struct err *e)
{
	const struct cuda *cuda = device_api();
	void *stream = device->ways[DEVICE_STORE].stream;
	int rc = device_enter(device);

	if (rc == CUDA_OK) {
		rc = cuda->copy_to_device((uintptr_t)to, host, bytes, stream);
		if (rc == CUDA_OK)
			rc = cuda->stream_synchronize(stream);
		device_leave();
	}
	return rc == CUDA_OK ? 0 : err_set(e, -EIO, "CUDA cannot copy to a GPU: %s", device_says(rc));
}

/* Blocks until no copy runs this way, and forgets them. */
static void device_drain(const struct device *v, struct device_way *w)
{
	if (w->cookie_count > 0 && device_enter(v) == CUDA_OK) {
		device_api()->stream_synchronize(w->stream);
		device_leave();
	}
	w->piece.bytes = 0;
	w->cookie_count = 0;
	w->ready = 0;
	w->unmarked = 0;
	w->mark_count = 0;
}

void devices_drain(struct devices *d)
{
	for (struct device *v = d->first; v; v = v->next)
		for (unsigned i = 0; i < DEVICE_WAYS; i++)
			device_drain(v, &v->ways[i]);
	d->copies = 0;
}

void devices_fini(struct devices *d)
{
	devices_drain(d);
	devices_unpin(d);
	while (d->first) {
		struct device *v = d->first;

		d->first = v->next;
		device_free(v);
	}
	memset(d, 0, sizeof(*d));
}
