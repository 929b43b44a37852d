/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of keys as of one revision, then what happened since.
 */
#include "transport/lookout.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "transport/etcd_text.h"

#define LOOKOUT_RETRY_NS (500 * NS_PER_MS)

static void lookout_put(struct lookout *l, struct roster *r, const struct roster_item *item)
{
	if (roster_put(r, item) < 0)
		l->left_out = true;
}

static void lookout_on_listed(void *arg, const struct etcd_item *item)
{
	struct lookout *l = arg;
	struct roster_item is;

	if (roster_read(l->prefix, item, &is) == 0)
		lookout_put(l, &l->listing, &is);
}

static void lookout_tell(struct lookout *l, const struct roster_item *item)
{
	if (l->changed)
		l->changed(l->arg, item);
}

static void lookout_on_event(void *arg, const struct etcd_item *item)
{
	struct lookout *l = arg;
	struct roster_item is;

	if (roster_read(l->prefix, item, &is) < 0)
		return;
	lookout_tell(l, &is);
	lookout_put(l, &l->roster, &is);
}

/* Tells of what was and is not, then of what is: a box before its jobs, and what it is the root of. */
static void lookout_compare(struct lookout *l)
{
	for (unsigned i = 0; i < l->roster.job_count; i++) {
		struct roster_item item = {.kind = ROSTER_JOB, .gone = true, .job = l->roster.jobs[i]};

		if (!roster_find_job(&l->listing, item.job.name, item.job.box))
			lookout_tell(l, &item);
	}
	for (unsigned i = 0; i < l->roster.box_count; i++) {
		struct roster_item item = {.kind = ROSTER_BOX, .gone = true, .box = l->roster.boxes[i]};

		if (!roster_find_box(&l->listing, item.box.name))
			lookout_tell(l, &item);
	}
	for (unsigned i = 0; i < l->roster.root_count; i++) {
		struct roster_item item = {.kind = ROSTER_ROOT, .gone = true, .root = l->roster.roots[i]};

		if (!roster_find_root(&l->listing, item.root.name))
			lookout_tell(l, &item);
	}
	for (unsigned i = 0; i < l->listing.box_count; i++)
		lookout_tell(l, &(struct roster_item){.kind = ROSTER_BOX, .box = l->listing.boxes[i]});
	for (unsigned i = 0; i < l->listing.root_count; i++)
		lookout_tell(l, &(struct roster_item){.kind = ROSTER_ROOT, .root = l->listing.roots[i]});
	for (unsigned i = 0; i < l->listing.job_count; i++)
		lookout_tell(l, &(struct roster_item){.kind = ROSTER_JOB, .job = l->listing.jobs[i]});
}

static void lookout_listed(struct lookout *l)
{
	lookout_compare(l);
	roster_fini(&l->roster);
	l->roster = l->listing;
	l->listing = (struct roster){.boxes = NULL};
	l->whole = true;
	l->failed = false;
	l->watches = l->watch;
	l->from[0] = '\0';
}

static void lookout_fail(struct lookout *l, const struct err *why, uint64_t now_ns)
{
	roster_fini(&l->listing);
	l->from[0] = '\0';
	l->watches = false;
	l->failed = true;
	l->why = *why;
	l->retry_ns = l->watch ? now_ns + LOOKOUT_RETRY_NS : CLOCK_NEVER;
}

static void lookout_heard_page(struct lookout *l, uint64_t now_ns)
{
	struct etcd_page page;
	struct err e, why;

	if (etcd_text_read_range(l->call.answer, l->call.bytes, lookout_on_listed, l, &page, &e) < 0) {
		err_set(&why, e.code, "etcd %s: %.400s", etcd_url(l->etcd), e.text);
		lookout_fail(l, &why, now_ns);
		return;
	}
	if (!l->from[0])
		l->revision = page.revision;
	/* The first key that is greater ends with one more byte: the smallest that may be in a key of ours. */
	if (!page.more) {
		lookout_listed(l);
	} else if (l->from[0] && strcmp(page.last, l->from) < 0) { /* it would be asked for ever */
		err_set(&why, -EPROTO, "etcd %s: keys come in no order", etcd_url(l->etcd));
		lookout_fail(l, &why, now_ns);
	} else {
		snprintf(l->from, sizeof(l->from), "%s\x01", page.last);
	}
}

/* Takes the lines that have come. Returns whether the watch goes on. */
static bool lookout_hear_lines(struct lookout *l, uint64_t now_ns)
{
	struct etcd_news news;
	struct err e, why;
	const char *line;
	size_t bytes;

	while ((line = etcd_line(&l->call, &bytes))) {
		if (etcd_text_read_watch(line, bytes, lookout_on_event, l, &news, &e) < 0) {
			err_set(&why, e.code, "etcd %s: %.400s", etcd_url(l->etcd), e.text);
			lookout_fail(l, &why, now_ns);
			return false;
		}
		if (news.over) {
			l->watches = false; /* what it asked for is no more: look at what there is */
			l->retry_ns = now_ns + LOOKOUT_RETRY_NS;
			return false;
		}
		if (news.revision > l->revision)
			l->revision = news.revision;
	}
	return true;
}

static void lookout_begin(struct lookout *l, uint64_t now_ns)
{
	char prefix[ROSTER_PREFIX_BYTES + 1];

	snprintf(prefix, sizeof(prefix), "%s/", l->prefix);
	if (l->watches)
		etcd_begin_stream(l->etcd, &l->call, "/v3/watch", etcd_text_watch(prefix, l->revision), now_ns);
	else
		etcd_begin(l->etcd, &l->call, "/v3/kv/range",
			etcd_text_range(
				prefix, l->from[0] ? l->from : NULL, ETCD_KEYS_MAX, l->from[0] ? l->revision : 0),
			now_ns);
}

void lookout_step(struct lookout *l, uint64_t now_ns)
{
	if (l->call.state == ETCD_IDLE) {
		if (now_ns < l->retry_ns || (l->whole && !l->watch))
			return;
		lookout_begin(l, now_ns);
	}
	etcd_step(l->etcd, now_ns);
	if (l->watches && !lookout_hear_lines(l, now_ns)) {
		etcd_end(&l->call);
	} else if (l->call.state == ETCD_DONE) {
		lookout_heard_page(l, now_ns);
		etcd_end(&l->call);
	} else if (l->call.state == ETCD_FAILED) {
		struct err why = l->call.why;

		etcd_end(&l->call);
		lookout_fail(l, &why, now_ns);
	}
}

uint64_t lookout_next(const struct lookout *l)
{
	if (l->call.state == ETCD_IDLE)
		return l->retry_ns;
	return l->call.state == ETCD_RUNNING ? etcd_next(l->etcd) : 0;
}

int lookout_wait(struct lookout *l, uint64_t deadline_ns, struct err *e)
{
	while (!l->whole && !l->failed) {
		struct pollfd fd = {.fd = etcd_fd(l->etcd), .events = POLLIN};
		uint64_t now_ns = clock_now_ns(), due_ns;

		if (now_ns >= deadline_ns)
			return err_set(e, -ETIMEDOUT, "etcd %s did not answer in time", etcd_url(l->etcd));
		lookout_step(l, now_ns);
		due_ns = lookout_next(l) < deadline_ns ? lookout_next(l) : deadline_ns;
		if (!l->whole && !l->failed)
			poll(&fd, 1, clock_timeout_ms(now_ns, due_ns));
	}
	if (l->failed)
		*e = l->why;
	return l->failed ? e->code : 0;
}

void lookout_fini(struct lookout *l)
{
	etcd_end(&l->call);
	roster_fini(&l->roster);
	roster_fini(&l->listing);
}
