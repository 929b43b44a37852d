/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/within.h"

#include <errno.h>
#include <stdlib.h>

#include "client/handle.h"
#include "phub/base/clock.h"

#define WITHIN_LOOK_NS (50 * NS_PER_MS)

/* What the site around cannot have; NULL: nothing of that. */
static const char *within_lacks(const struct phub_site *s, const struct phub_site *within)
{
	const struct settings *own = &s->phub->settings, *inner = &within->phub->settings;

	return s->config.algorithm != SITE_LOCAL ? "PHUB_SITE_LOCAL alone says what sites within have moved; the one "
						   "within may have any algorithm"
	       : s->at_box || within->at_box
		       ? "with PHUB_OUTER_BOX weights are the box's; take PHUB_OUTER_NESTEROV and the like"
	       : within->within ? "it has one within itself; there are two classes of links"
	       : !own->resume_ms != !inner->resume_ms
		       ? "one of the two jobs resumes, and the other does not; give both resume_ms, or neither"
	       : own->resume_ms && own->lost != PHUB_LOST_FAIL
		       ? "jobs that resume do so with all their racks; leave lost PHUB_LOST_FAIL, or resume_ms 0"
	       : own->lost == PHUB_LOST_WAIT || inner->lost != PHUB_LOST_FAIL
		       ? "nobody comes to them later yet: the job within has PHUB_LOST_FAIL, the one around that or "
			 "PHUB_LOST_SHRINK"
	       : own->no_thread || inner->no_thread ? "both want the progress thread; leave no_thread false"
						    : NULL;
}

int within_open(struct phub_site *s, struct phub_site *within, struct err *e)
{
	const char *lacks;

	if (within->around)
		return err_set(e, -EBUSY, "%s: the site within it (%s) has one around it already", s->phub->session.who,
			within->phub->session.who);
	lacks = within_lacks(s, within);
	if (lacks)
		return err_set(e, -ENOTSUP, "%s: not around the site within it (%s): %s", s->phub->session.who,
			within->phub->session.who, lacks);
	s->within = within;
	within->around = s;
	return 0;
}

void within_close(struct phub_site *s)
{
	if (s->within)
		s->within->around = NULL;
	if (s->around) {
		s->around->within = NULL;
		s->around->orphan = true;
	}
	free(s->common);
	s->common = NULL;
}

static int within_memory(struct phub_site *s)
{
	unsigned count = s->within->config.tensor_count;

	if (!s->common)
		s->common = calloc(s->within->site.elements, sizeof(*s->common));
	if (!s->tensors)
		s->tensors = calloc(count, sizeof(*s->tensors));
	return s->common && s->tensors ? 0 : -ENOMEM;
}

int within_name(struct phub_site *s, struct err *e)
{
	const struct phub_site *within = s->within;

	if (within_memory(s) < 0)
		return err_set(
			e, -ENOMEM, "%s: no memory for what the sites within have in common", s->phub->session.who);
	while (s->config.tensor_count < within->config.tensor_count) {
		unsigned t = s->config.tensor_count;
		const struct site_tensor *tensor = &within->tensors[t];
		int key = phub_key(s->phub, within->phub->keyring.keys[t].name, PHUB_F32, tensor->elements, 0,
			course_key_flags(s));

		if (key < 0)
			return key;
		s->tensors[t] =
			(struct site_tensor){s->common + within->site.offset[t], tensor->elements, tensor->trained};
		s->config.tensor_count++;
	}
	within_take(s);
	return 0;
}

/* How it is with a session that nobody waits for. */
static int within_look(struct phub_site *s)
{
	const int64_t round = phub_round(s->phub, s->slots_key);

	return round >= 0 || round == -EBUSY ? 0 : course_hurt(s, (int)round);
}

int within_run(struct phub_site *s, struct phub_site *other, bool settles, uint64_t deadline_ns)
{
	const bool looks = s->phub->settings.resume_ms > 0;

	for (;;) {
		const uint64_t look_ns = s->phub->env.now(s->phub->env.ctx) + WITHIN_LOOK_NS;
		const uint64_t until_ns = looks && look_ns < deadline_ns ? look_ns : deadline_ns;
		const int rc = settles ? course_settle(s, until_ns) : course_run(s, until_ns);
		const int lost = looks && rc == -ETIMEDOUT ? within_look(other) : 0;

		if (lost < 0)
			return lost;
		if (rc != -ETIMEDOUT || until_ns == deadline_ns)
			return rc;
	}
}

void within_take(struct phub_site *s)
{
	for (unsigned t = 0; s->within && t < s->config.tensor_count; t++)
		site_common(&s->within->site, t, s->tensors[t].weights);
}

void within_give(struct phub_site *s)
{
	for (unsigned t = 0; s->within && t < s->config.tensor_count; t++)
		site_rebase(&s->within->site, t, s->tensors[t].weights);
}

uint64_t within_exchanges(const struct phub_site *s)
{
	return s->within ? s->within->site.counts.exchanges : 0;
}

uint64_t within_bytes(const struct phub_site *s)
{
	return s->within ? s->within->site.counts.bytes_paper + s->within->bytes_travel : 0;
}
