/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of a site at a job: what they are given is checked here, and the rest is its course's.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/drive.h"
#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/environment.h"
#include "client/scout/options.h"
#include "client/scout/site_saved.h"
#include "client/scout/within.h"
#include "phub/base/clock.h"
#include "phub/base/crc.h"

#define SITES_SLOTS_KEY "phub.sites"

/* What doubles count one by one; and no -1. */
#define SITES_SAMPLES_MAX (UINT64_C(1) << 53)

/* ---- opening ---- */

static const char *sites_who(const struct phub_site *s)
{
	return s->phub->session.who;
}

/* Can it not go on? */
static bool sites_broken(const phub_site_t *s)
{
	return !s || s->ended.code || s->stale || s->orphan ||
	       (s->within && (s->within->ended.code || s->within->stale));
}

static int sites_refuse(const phub_site_t *s)
{
	struct err *e = api_last_error();

	if (!s)
		return err_set(e, -EINVAL, "the site is NULL; phub_site_open() makes one");
	if (s->ended.code)
		return err_set(e, s->ended.code, "%s", s->ended.text);
	if (s->orphan)
		return err_set(
			e, -EINVAL, "%s: the site within it was closed; close this one first, then that", sites_who(s));
	if (s->within && s->within->ended.code)
		return err_set(e, s->within->ended.code, "%s", s->within->ended.text);
	return err_set(e, -ESTALE, "%s: the box was lost; call phub_site_resume()", sites_who(s));
}

/* 0: it is at rest, and may be changed. */
static int sites_rests(const phub_site_t *s)
{
	if (sites_broken(s))
		return sites_refuse(s);
	if (!s->started)
		return err_set(api_last_error(), -EINVAL, "%s: phub_site_start() has not been completed", sites_who(s));
	if (s->flight != COURSE_REST || course_next(s) != COURSE_REST || s->owes || s->owes_finish)
		return err_set(
			api_last_error(), -EBUSY, "%s: an exchange is on its way; call phub_site_wait()", sites_who(s));
	return 0;
}

/* Can this job be a site's? */
static int sites_check_job(const phub_t *p, bool at_box, struct err *e)
{
	const struct settings *job = &p->settings;

	if (p->frozen || p->running || p->keyring.count > 0)
		return err_set(
			e, -EBUSY, "%s: a site makes the keys of its job by itself, and it has some", p->session.who);
	if (job->sync != PHUB_BSP || job->quorum > 0)
		return err_set(e, -EINVAL, "%s: a site's job is BSP without quorum: all exchanges are of all sites",
			p->session.who);
	if (at_box && (job->optimizer == PHUB_NONE || job->reduce != PHUB_MEAN))
		return err_set(e, -EINVAL, "%s: with PHUB_OUTER_BOX the job has an optimizer and takes the mean",
			p->session.who);
	if (!at_box && (job->optimizer != PHUB_NONE || job->reduce != PHUB_SUM))
		return err_set(e, -EINVAL,
			"%s: a site's job has no optimizer and takes the sum: sites step by themselves",
			p->session.who);
	return 0;
}

static int sites_check_samples(const struct phub_site *s, uint64_t samples, struct err *e)
{
	return samples <= SITES_SAMPLES_MAX
		       ? 0
		       : err_set(e, -EINVAL, "%s: samples=%" PRIu64 "; allowed: 0 to 2^53", sites_who(s), samples);
}

/* What no two options can say together, and what none can. */
static int sites_check(const struct phub_site *s, const struct phub_site_options *o, struct err *e)
{
	int rc = sites_check_samples(s, o->samples, e);

	if (rc < 0)
		return rc;
	if (o->outer != PHUB_OUTER_AVERAGE && o->algorithm != PHUB_SITE_LOCAL)
		return err_set(e, -EINVAL, "%s: outer=%s is of PHUB_SITE_LOCAL, and the algorithm is %s", sites_who(s),
			outer_name((enum outer_kind)o->outer), site_algorithm_name((enum site_algorithm)o->algorithm));
	if (s->at_box && (o->scout || o->weighted))
		return err_set(e, -ENOTSUP,
			"%s: the box's optimizer takes a mean, and gradients alone: PHUB_OUTER_NESTEROV and the like "
			"go with weights and a scout",
			sites_who(s));
	return 0;
}

/* Under the handle's lock: its progress thread runs since phub_connect(). */
static int sites_take_job(struct phub_site *s, const struct environment *given, struct err *e)
{
	phub_t *p = s->phub;
	int rc;

	drive_lock(p);
	rc = sites_check_job(p, s->at_box, e);
	if (rc == 0 && given->lost >= 0) /* the box hears it at the start */
		p->settings.lost = (enum phub_lost)given->lost;
	if (rc == 0 && given->reproducible >= 0) /* likewise */
		p->settings.reproducible = given->reproducible;
	s->may_lose = p->settings.lost != PHUB_LOST_FAIL;
	drive_unlock(p);
	return rc;
}

/* Of two things one is wrong early, what else there is site_init() and scout_init() say at the start. */
static int sites_settle(
	struct phub_site *s, const struct phub_site_options *o, const struct environment *given, struct err *e)
{
	int rc;

	s->samples = o->samples;
	s->weighted = o->weighted;
	s->evaluate = o->evaluate;
	s->context = o->context;
	options_site_config(o, &s->config);
	s->at_box = o->algorithm == PHUB_SITE_LOCAL && o->outer == PHUB_OUTER_BOX;
	rc = sites_check(s, o, e);
	if (rc == 0)
		rc = sites_take_job(s, given, e);
	if (rc == 0 && o->scout) {
		s->scouted = true;
		rc = options_scout(o->scout, &s->config.algorithm, &s->scout_config, e);
	}
	if (rc == 0 && s->scouted && o->evaluate && s->scout_config.policy == SCOUT_PLUS &&
		s->scout_config.plus.tries < PHUB_SITE_SAMPLES_LEAST)
		rc = err_set(e, -EINVAL, "%s: scout+ with tries=%u; of fewer than %u samples nothing leaves a site",
			sites_who(s), s->scout_config.plus.tries, PHUB_SITE_SAMPLES_LEAST);
	if (rc == 0 && !o->scout && !site_theta_valid(s->config.algorithm, s->config.theta))
		rc = err_set(e, -EINVAL, "%s: %s cannot have a theta of %g; allowed: %s", sites_who(s),
			site_algorithm_name(s->config.algorithm), s->config.theta, site_thetas(s->config.algorithm));
	return rc;
}

int phub_site_open(phub_t *p, const struct phub_site_options *options, phub_site_t **out)
{
	struct phub_site_options own;
	struct environment given;
	struct err *e = api_last_error();
	int rc = options_site(options, &own, e);
	phub_site_t *s;

	if (rc == 0 && own.scout && !isnan(own.theta)) /* of the program, before it hears of the environment */
		rc = err_set(e, -EINVAL,
			"site: theta=%g beside a scout, which sets it; leave it away, or take it for the scout's first",
			own.theta);
	if (rc == 0)
		rc = environment_apply(&own, &given, e);
	if (rc < 0)
		return rc;
	if (!p || !out)
		return err_set(
			e, -EINVAL, "phub_site_open() needs a handle of phub_connect(), and a place for its own");
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, -ENOMEM, "%s: no memory for a site", p->session.who);
	s->phub = p;
	s->rank = p->settings.rank;
	s->world = p->settings.world;
	s->slots_key = -1;
	s->log.fd = -1;
	if (own.link)
		snprintf(s->link, sizeof(s->link), "%s", own.link);
	rc = sites_settle(s, &own, &given, e);
	if (rc == 0 && own.within)
		rc = sites_rests(own.within);
	if (rc == 0 && own.within)
		rc = within_open(s, own.within, e);
	if (rc == 0 && own.within)
		course_log_yield(own.within, s);
	if (rc == 0)
		rc = course_log_open(s, own.log, e);
	if (rc < 0) {
		course_log_close(s);
		within_close(s);
		free(s);
		return rc;
	}
	*out = s;
	return 0;
}

static bool sites_has_room(struct phub_site *s)
{
	unsigned count = s->config.tensor_count;
	struct site_tensor *more;

	if (count & (count - 1)) /* room is doubled */
		return true;
	more = realloc(s->tensors, (count ? 2 * count : 1) * sizeof(*s->tensors));
	if (!more)
		return false;
	s->tensors = more;
	return true;
}

/* May it be named, with this for its values? */
static int sites_name_check(const phub_site_t *s, const char *call, const char *name, const void *values)
{
	struct err *e = api_last_error();

	if (!s || !values)
		return err_set(e, -EINVAL, "%s() needs a site, and weights", call);
	if (s->named)
		return err_set(e, -EBUSY, "%s: tensor '%.100s' comes after phub_site_start() or phub_site_load()",
			sites_who(s), name ? name : "");
	if (s->within || s->orphan)
		return err_set(e, -EINVAL, "%s: its tensors are those of the site within it; leave '%.100s' away",
			sites_who(s), name ? name : "");
	return 0;
}

int phub_site_frozen(phub_site_t *s, const char *name, const void *values, uint64_t bytes)
{
	int rc = sites_name_check(s, "phub_site_frozen", name, values);

	if (rc < 0)
		return rc;
	if (!name || !*name || bytes == 0 || bytes > PTRDIFF_MAX)
		return err_set(api_last_error(), -EINVAL, "%s: %" PRIu64 " frozen bytes of '%.100s'; both are needed",
			sites_who(s), bytes, name ? name : "");
	s->frozen++;
	s->frozen_check = crc_32c(s->frozen_check, name, strlen(name) + 1);
	s->frozen_check = crc_32c(s->frozen_check, values, bytes);
	return 0;
}

int phub_site_tensor(phub_site_t *s, const char *name, float *weights, uint32_t elements, bool trained)
{
	struct err *e = api_last_error();
	int key = sites_name_check(s, "phub_site_tensor", name, weights);

	if (key < 0)
		return key;
	if (s->at_box && !trained)
		return err_set(e, -ENOTSUP,
			"%s: tensor '%.100s' has no gradients, and the box's optimizer takes nothing else; "
			"PHUB_OUTER_NESTEROV is its step at each site",
			sites_who(s), name ? name : "");
	if (s->config.tensor_count == SITE_TENSORS_MAX)
		return err_set(e, -EINVAL, "%s: a site has at most %u tensors", sites_who(s), SITE_TENSORS_MAX);
	if (!sites_has_room(s))
		return err_set(e, -ENOMEM, "%s: no memory for tensor '%.100s'", sites_who(s), name ? name : "");
	key = phub_key(s->phub, name, PHUB_F32, elements, 0, course_key_flags(s));
	if (key < 0)
		return key;
	s->tensors[s->config.tensor_count++] = (struct site_tensor){weights, elements, trained};
	return key;
}

/* ---- the course ---- */

static int sites_deadline(const phub_site_t *s, int timeout_ms, uint64_t *deadline_ns)
{
	int ms = timeout_ms == PHUB_TIMEOUT_DEFAULT ? s->phub->settings.timeout_ms : timeout_ms;

	if (ms < 0)
		return err_set(api_last_error(), -EINVAL, "%s: a timeout of %d ms; 0 or more, or PHUB_TIMEOUT_DEFAULT",
			sites_who(s), timeout_ms);
	*deadline_ns = clock_deadline_ns(s->phub->env.now(s->phub->env.ctx), ms);
	return 0;
}

static int sites_left_ms(const phub_site_t *s, uint64_t deadline_ns)
{
	return clock_timeout_ms(s->phub->env.now(s->phub->env.ctx), deadline_ns);
}

/* How many tensors are trained, and which. */
static void sites_say_trained(phub_site_t *s, char *text, size_t room)
{
	char value[32];
	unsigned count = 0;
	uint32_t crc = 0;

	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const uint8_t trained = s->tensors[t].trained;

		count += trained;
		crc = crc_32c(crc, &trained, sizeof(trained));
	}
	snprintf(value, sizeof(value), "%u (%08" PRIx32 ")", count, crc);
	options_say(text, room, "trained tensors", value);
}

static void sites_say_frozen(const phub_site_t *s, char *text, size_t room)
{
	char value[32];

	snprintf(value, sizeof(value), "%u (%08" PRIx32 ")", s->frozen, s->frozen_check);
	if (s->frozen > 0)
		options_say(text, room, "frozen weights", value);
}

/* A size of the model that follows from its tensors is not said: those are compared. */
static void sites_say_scout(phub_site_t *s, char *text, size_t room)
{
	struct scout_config config = s->scout_config;

	if (config.model_bytes == (uint64_t)s->site.elements * SITE_VALUE_BYTES)
		config.model_bytes = 0;
	options_say_scout(text, room, &config);
}

/* What sites have alike: where it differs the box says in what, and of whom. The algorithm comes first, as keys follow
 * from it. With a site within the optimizer is that one's, and alike in all racks. */
static void sites_say(phub_site_t *s)
{
	const struct site_config *c = &s->config;
	char *text = s->phub->settings.sites;
	const size_t room = sizeof(s->phub->settings.sites);

	snprintf(text, room, "%s%s", site_algorithm_name(c->algorithm), s->scouted ? " with a scout" : "");
	if (c->algorithm == SITE_GAIA)
		options_say_number(text, room, "rate_first", c->rate_first);
	if (c->algorithm == SITE_DGC) {
		options_say_number(text, room, "clip", c->clip);
		options_say_number(text, room, "warmup", c->warmup);
	}
	if (c->algorithm == SITE_LOCAL)
		options_say_outer(text, room, &c->outer);
	if (s->scouted)
		sites_say_scout(s, text, room);
	else if (!s->at_box) /* as it began: who comes later has theirs, whatever it is now */
		options_say_number(text, room, "theta", s->config.theta);
	options_say(text, room, "weighted", s->weighted ? "yes" : "no");
	if (s->within)
		c = &s->within->config;
	options_say_number(text, room, "momentum", c->momentum);
	options_say_number(text, room, "weight_decay", c->weight_decay);
	sites_say_trained(s, text, room);
	sites_say_frozen(s->within ? s->within : s, text, room);
	if (!s->at_box) /* else they tell each other, and take what they have to */
		return;
	options_say_number(text, room, "theta so far", s->site.config.theta);
	options_say_number(text, room, "steps so far", (double)s->site.counts.steps);
}

static int sites_name(phub_site_t *s)
{
	int rc;

	rc = s->within ? within_name(s, api_last_error()) : 0;
	if (rc < 0)
		return rc;
	if (s->config.tensor_count == 0)
		return err_set(
			api_last_error(), -EINVAL, "%s: a site without tensors; call phub_site_tensor()", sites_who(s));
	rc = course_init(s, api_last_error());
	if (rc < 0)
		return rc;
	rc = unsound_init(s, api_last_error());
	if (rc == 0 && !s->at_box)
		rc = s->slots_key = phub_key(
			s->phub, SITES_SLOTS_KEY, PHUB_F32, course_slots(s), 0, PHUB_KEY_ALONE | PHUB_KEY_SPARSE);
	s->named = rc >= 0;
	if (rc < 0) {
		course_fini(s);
		unsound_fini(s);
	}
	return rc < 0 ? rc : 0;
}

/* What was common to the sites within as they stood still is replaced where a round has replaced it. */
static int sites_run(phub_site_t *s, bool settles, uint64_t deadline_ns)
{
	int rc;

	if (!s->within || course_next(s) == COURSE_REST)
		return course_run(s, deadline_ns);
	within_take(s);
	rc = within_run(s, s->within, settles, deadline_ns);
	within_give(s);
	return rc;
}

/* phub_start() has failed: what the box says of options is all that it knows of them, and here is what to do. */
static int sites_advise(int rc)
{
	static const char *const known[][2] = {
		{" so far of sites differs", "all load what they saved after the same step, or none does"},
		{"frozen weights of sites differs", "what is frozen is the same at all sites to begin with"}};
	const struct err said = *api_last_error();

	for (unsigned i = 0; rc == -EBADMSG && i < sizeof(known) / sizeof(known[0]); i++)
		if (strstr(said.text, known[i][0]))
			return err_set(api_last_error(), rc, "%.400s; %s", said.text, known[i][1]);
	return rc;
}

/* Sites in sites begin together: who comes later would wait for its rack, and the rack's others for it. */
static int sites_begin(phub_site_t *s)
{
	int rc = course_start(s);

	if (rc < 0 || !s->within || !s->hello)
		return rc;
	rc = err_set(&s->ended, -ENOTSUP,
		"%s: it runs already, and with a site within nobody comes to it later yet; start all of it again",
		sites_who(s));
	return err_set(api_last_error(), rc, "%s", s->ended.text);
}

/* All have the same weights, whichever call that was: the log begins, or goes on. */
static void sites_begun(phub_site_t *s)
{
	if (!s->begun)
		course_log_run(s);
	s->begun = true;
}

int phub_site_start(phub_site_t *s, int timeout_ms)
{
	uint64_t deadline_ns;
	int rc;

	if (sites_broken(s))
		return sites_refuse(s);
	rc = sites_deadline(s, timeout_ms, &deadline_ns);
	if (rc == 0 && !s->named)
		rc = sites_name(s);
	if (rc == 0 && !s->started) {
		sites_say(s); /* what it has loaded, too */
		rc = sites_advise(phub_start(s->phub, sites_left_ms(s, deadline_ns)));
		if (rc == 0)
			rc = sites_begin(s);
		s->started = rc == 0;
	}
	if (rc == 0)
		rc = sites_run(s, false, deadline_ns);
	if (rc == 0)
		sites_begun(s);
	return rc;
}

/* The site's own part of a step. */
static int sites_move(phub_site_t *s, const float *const *gradients, double rate)
{
	int rc = site_step(&s->site, gradients, rate);

	if (rc < 0)
		return err_set(api_last_error(), rc,
			"%s: a step with a rate of %g; it needs to be 0 or more, and a gradient for each trained "
			"tensor",
			sites_who(s), rate);
	shadow_step(&s->shadow, &s->site, gradients);
	course_step(s);
	return 0;
}

/* Of what all were to do by phub_site_finish(): have they? */
static int sites_finished(phub_site_t *s)
{
	for (phub_site_t *at = s; at; at = at->within) {
		const uint32_t lags = at->lags;

		at->lags = 0;
		if (lags > 0)
			return err_set(api_last_error(), -EBADMSG,
				"%s: this site finishes after step %" PRIu64 ", and rank %" PRIu32
				" goes on: all call phub_site_finish() after the same step. What it had left to say "
				"it has said, and the weights of sites differ",
				sites_who(at), at->site.counts.steps, lags - 1);
	}
	return 0;
}

/* What is on its way; of sites in sites first that of the one within, then the step of the one around it; before that
 * both come to the weights that all have, where they were lost. */
static int sites_go_on(phub_site_t *s, uint64_t deadline_ns)
{
	int rc = s->within ? within_run(s->within, s, true, deadline_ns) : 0;

	if (rc == 0 && s->within)
		rc = sites_run(s, true, deadline_ns);
	if (rc == 0 && s->within)
		rc = within_run(s->within, s, false, deadline_ns);
	if (rc == 0 && s->owes) {
		s->owes = false;
		rc = sites_move(s, NULL, s->rate);
	}
	if (rc == 0 && s->owes_finish) {
		s->owes_finish = false;
		course_finish(s);
	}
	rc = rc == 0 ? sites_run(s, false, deadline_ns) : rc;
	if (rc == 0)
		sites_begun(s);
	if (rc == 0)
		s->log.stepped_ns = s->phub->env.now(s->phub->env.ctx);
	return rc == 0 ? sites_finished(s) : rc;
}

/* 0: it rests, and no site around it steps. */
static int sites_rests_alone(const phub_site_t *s, const char *call)
{
	const int rc = sites_rests(s);

	if (rc == 0 && s->around)
		return err_set(api_last_error(), -EBUSY, "%s: the site around it steps (%s); call %s() of that one",
			sites_who(s), sites_who(s->around), call);
	return rc;
}

int phub_site_step(phub_site_t *s, const float *const *gradients, double rate, int timeout_ms)
{
	uint64_t deadline_ns;
	int rc = sites_rests_alone(s, "phub_site_step");

	if (rc == 0)
		rc = sites_deadline(s, timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = sites_move(s->within ? s->within : s, gradients, rate);
	if (rc < 0)
		return rc;
	s->owes = s->within;
	s->rate = rate;
	return sites_go_on(s, deadline_ns);
}

int phub_site_finish(phub_site_t *s, int timeout_ms)
{
	uint64_t deadline_ns;
	int rc = sites_rests_alone(s, "phub_site_finish");

	if (rc == 0)
		rc = sites_deadline(s, timeout_ms, &deadline_ns);
	if (rc < 0)
		return rc;
	course_finish(s->within ? s->within : s);
	s->owes_finish = s->within;
	return sites_go_on(s, deadline_ns);
}

int phub_site_loss(phub_site_t *s, double loss, uint64_t samples)
{
	if (!s)
		return sites_refuse(s);
	for (; s; s = s->within) {
		s->window.batches += loss;
		s->window.trained += samples;
	}
	return 0;
}

int phub_site_score(phub_site_t *s, const struct phub_score *score)
{
	if (!s)
		return sites_refuse(s);
	if (!score || score->samples == 0)
		return err_set(
			api_last_error(), -EINVAL, "%s: a score is of samples, and there are none", sites_who(s));
	if (score->correct > score->samples && score->correct != UINT64_MAX)
		return err_set(api_last_error(), -EINVAL,
			"%s: a score is of samples, and of %" PRIu64 " of them %" PRIu64 " cannot be correct",
			sites_who(s), score->samples, score->correct);
	s->log.score = *score;
	s->log.scored = true;
	return 0;
}

int phub_site_wait(phub_site_t *s, int timeout_ms)
{
	uint64_t deadline_ns;
	int rc;

	if (sites_broken(s))
		return sites_refuse(s);
	if (!s->started)
		return sites_rests(s);
	rc = sites_deadline(s, timeout_ms, &deadline_ns);
	return rc == 0 ? sites_go_on(s, deadline_ns) : rc;
}

/* Both connect again by themselves: it does not matter who is waited for first. */
static int sites_resume(phub_site_t *s, uint64_t deadline_ns)
{
	int rc;

	if (!s || !s->stale)
		return 0;
	rc = phub_resume(s->phub, sites_left_ms(s, deadline_ns));
	if (rc == 0)
		course_resumed(s);
	return rc;
}

int phub_site_resume(phub_site_t *s, int timeout_ms)
{
	uint64_t deadline_ns;
	int rc;

	if (s && s->around)
		s = s->around;
	if (!s || s->ended.code || s->orphan || (s->within && s->within->ended.code))
		return sites_refuse(s);
	if (!s->started)
		return sites_rests(s);
	rc = sites_deadline(s, timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = sites_resume(s->within, deadline_ns);
	if (rc == 0)
		rc = sites_resume(s, deadline_ns);
	return rc == 0 ? sites_go_on(s, deadline_ns) : rc;
}

/* ---- checkpoints ---- */

int64_t phub_site_save(phub_site_t *s, void *out, size_t bytes)
{
	const int rc = sites_rests(s);
	size_t needed;

	if (rc < 0)
		return rc;
	needed = site_saved_bytes(s);
	if (out && bytes < needed)
		return err_set(api_last_error(), -ENOSPC,
			"%s: its state takes %zu bytes, and there are %zu; phub_site_save() with NULL tells how many",
			sites_who(s), needed, bytes);
	if (out)
		site_saved_write(s, out);
	return (int64_t)needed;
}

int phub_site_load(phub_site_t *s, const void *in, size_t bytes)
{
	struct err *e = api_last_error();
	int rc;

	if (sites_broken(s))
		return sites_refuse(s);
	if (!in)
		return err_set(e, -EINVAL, "%s: there is no state to load", sites_who(s));
	if (s->started)
		return err_set(e, -EBUSY, "%s: a state is loaded before phub_site_start()", sites_who(s));
	rc = s->named ? 0 : sites_name(s);
	return rc == 0 ? site_saved_read(s, in, bytes, e) : rc;
}

/* ---- changes ---- */

int phub_site_set_samples(phub_site_t *s, uint64_t samples)
{
	int rc = sites_rests(s);

	if (rc == 0)
		rc = sites_check_samples(s, samples, api_last_error());
	if (rc == 0)
		s->samples = samples;
	return rc;
}

int phub_site_set_theta(phub_site_t *s, double theta)
{
	int rc = sites_rests(s);

	if (rc == 0 && s->scouted)
		rc = err_set(api_last_error(), -EINVAL, "%s: the scout sets theta", sites_who(s));
	if (rc == 0 && site_set_theta(&s->site, theta) < 0)
		rc = err_set(api_last_error(), -EINVAL, "%s: %s cannot have a theta of %g; allowed: %s", sites_who(s),
			site_algorithm_name(s->config.algorithm), theta, site_thetas(s->config.algorithm));
	return rc;
}

/* Local SGD says all in each exchange, and has it when the others have theirs. */
int phub_site_flush(phub_site_t *s)
{
	int rc = sites_rests(s);

	if (rc == 0 && s->within)
		s = s->within;
	if (rc == 0 && s->config.algorithm != SITE_LOCAL)
		rc = site_flush(&s->site);
	return rc;
}

/* ---- what it knows ---- */

int phub_site_state(phub_site_t *s, struct phub_site_state *state)
{
	struct phub_stats stats = {.size = sizeof(stats)};
	struct phub_site_state now;
	struct err *e = api_last_error();
	int rc;

	if (!s || !state || state->size < sizeof(size_t) || state->size > 4096)
		return err_set(e, -EINVAL, "phub_site_state() needs a site, and a struct with its size");
	rc = phub_stats(s->phub, &stats);
	if (rc < 0)
		return rc;
	now = (struct phub_site_state){.size = state->size,
		.steps = s->site.counts.steps,
		.exchanges = s->exchanges,
		.theta = s->named ? s->site.config.theta : s->config.theta,
		.share = s->named ? s->site.config.share : s->config.share,
		.sites = s->present.count,
		.values = s->site.counts.values,
		.bytes = s->site.counts.bytes_paper,
		.bytes_travel = s->bytes_travel,
		.bytes_wire = s->wire_before + stats.pushed_bytes,
		.windows = s->windows,
		.bytes_within = within_bytes(s),
		.log_error = s->log.error,
		.broken_since = unsound_since(s)};
	if (s->at_box) {
		if (now.exchanges < s->site.counts.exchanges) /* those that the box has lost, too */
			now.exchanges = s->site.counts.exchanges;
		rc = phub_present(s->phub);
		now.sites = rc > 0 ? (unsigned)rc : 0;
		now.share = rc > 0 ? 1.0 / rc : 0;
	}
	memcpy(state, &now, now.size < sizeof(now) ? now.size : sizeof(now));
	return rc < 0 ? rc : 0;
}

int phub_site_ranks(phub_site_t *s, uint32_t *ranks, unsigned count)
{
	if (!s)
		return sites_refuse(s);
	if (!ranks && count > 0)
		return err_set(api_last_error(), -EINVAL, "%s: phub_site_ranks() needs a place", sites_who(s));
	for (unsigned i = 0; i < count && i < s->present.count; i++)
		ranks[i] = s->present.ranks[i];
	return (int)s->present.count;
}

int phub_site_decision(phub_site_t *s, struct phub_scout_decision *decision)
{
	if (!s)
		return sites_refuse(s);
	if (s->windows == 0)
		return err_set(api_last_error(), -ENODATA, "%s: nothing was decided yet", sites_who(s));
	return options_tell(&s->decision, decision, api_last_error());
}

int phub_site_alignment(phub_site_t *s, double *r, unsigned count)
{
	if (!s)
		return sites_refuse(s);
	if (!r && count > 0)
		return err_set(api_last_error(), -EINVAL, "%s: phub_site_alignment() needs a place", sites_who(s));
	if (s->windows == 0)
		return err_set(api_last_error(), -ENODATA, "%s: nothing was decided yet", sites_who(s));
	for (unsigned t = 0; t < count && t < s->config.tensor_count; t++)
		r[t] = s->align.r[t];
	return (int)s->config.tensor_count;
}

const char *phub_site_warning(phub_site_t *s)
{
	const char *text = s ? unsound_text(s) : NULL;

	text = s && !text ? course_warning(s) : text;
	return s && !text ? window_warning(s) : text;
}

void phub_site_close(phub_site_t *s)
{
	if (!s)
		return;
	if (s->flight != COURSE_REST || s->ended.code) /* then nothing touches its memory any more */
		phub_leave_unfinished(s->phub, 0);
	course_log_close(s);
	if (s->named)
		course_fini(s);
	unsound_fini(s);
	within_close(s);
	free(s->tensors);
	free(s);
}
