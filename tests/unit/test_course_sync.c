/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a site takes of a sync, and of the log that another wrote, without a job: the slots and the sum are put where a
 * round would have left them.
 */
#include "client/scout/course.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/scout/record.h"
#include "client/scout/site_saved.h"
#include "phub/base/crc.h"

enum { ELEMENTS = 8, WORLD = 2, ROOT = 0, OWN = 1, THETA = 4 };

struct rig {
	struct phub phub;
	struct phub_site site;
	struct site_tensor tensor;
	float weights[ELEMENTS];
};

/* A site that goes by what models lose, in the middle of an interval that ends a window: it has a copy of its model. */
static void rig_init(struct rig *r)
{
	static const float gradient[ELEMENTS] = {1, 2, 3, 4, 5, 6, 7, 8};
	const float *gradients[] = {gradient};
	struct phub_site *s = &r->site;
	struct err e = {0};

	memset(r, 0, sizeof(*r));
	r->tensor = (struct site_tensor){r->weights, ELEMENTS, true};
	s->phub = &r->phub;
	s->rank = OWN;
	s->world = WORLD;
	s->log.fd = -1;
	s->scouted = s->has = true;
	s->tensors = &r->tensor;
	s->samples = 1;
	s->config = (struct site_config){
		.algorithm = SITE_LOCAL, .theta = THETA, .share = 0.5, .sites = WORLD, .tensor_count = 1};
	scout_defaults(&s->scout_config);
	s->scout_config.thetas[0] = 1;
	s->scout_config.thetas[1] = THETA;
	s->scout_config.theta_count = 2;
	s->scout_config.first = 1;
	s->scout_config.period = THETA;
	assert_int_equal(course_init(s, &e), 0);
	assert_false(s->scout.config.plus.statistics);
	for (unsigned step = 0; step < THETA / 2; step++) {
		window_keep(s);
		assert_false(s->window.midway.kept);
		assert_int_equal(site_step(&s->site, gradients, 0.5), 0);
	}
	window_keep(s);
	assert_true(s->window.midway.kept);
	assert_memory_equal(s->window.midway.weights, r->weights, sizeof(r->weights));
}

static void rig_fini(struct rig *r)
{
	course_fini(&r->site);
}

static uint32_t check_of(const float *values)
{
	uint32_t crc = 0;

	for (unsigned i = 0; i < ELEMENTS; i++) {
		uint32_t bits = 0;

		if (values[i] != 0)
			memcpy(&bits, &values[i], sizeof(bits));
		crc = crc_32c(crc, &bits, sizeof(bits));
	}
	return crc;
}

/* Rank 0 has been in so many exchanges, and has these common weights; `wrong`: they have not come whole. */
static void land(struct rig *r, uint64_t exchanges, const float *common, bool wrong)
{
	struct phub_site *s = &r->site;
	const struct slot root = {.flags = SLOT_HERE | SLOT_HAS,
		.steps = THETA / 2,
		.exchanges = exchanges,
		.samples = 1,
		.check = check_of(common) + wrong};
	const struct slot own = {.flags = SLOT_HERE, .steps = s->site.counts.steps, .samples = 1};
	struct slots_news news = {.theta = THETA, .window = exchanges * THETA, .since = THETA - 1};

	scout_save(&s->scout, news.scout);
	memset(s->slots_in, 0, course_slots(s) * sizeof(float));
	slots_put(s->slots_in, ROOT, &root);
	slots_put(s->slots_in, OWN, &own);
	slots_put_news(s->slots_in, WORLD, &news);
	memcpy(s->sums, common, ELEMENTS * sizeof(*common));
	s->sync.root = ROOT;
	s->sync.stage = 0;
	s->sync.due = s->sync.takes = true;
	s->sync.damaged = false;
	course_sync_land(s);
	assert_false(s->sync.due || s->sync.takes);
	assert_int_equal(s->hello, wrong);
}

/* All were in the same exchanges: the interval goes on, and so it is the same model that is tried. */
static void test_a_copy_of_this_interval_stays(void **state)
{
	const float common[ELEMENTS] = {0};
	float copy[ELEMENTS];
	struct rig r;

	rig_init(&r);
	memcpy(copy, r.weights, sizeof(copy));
	land(&r, 0, common, false);
	assert_true(r.site.window.midway.kept);
	assert_memory_equal(r.site.window.midway.weights, copy, sizeof(copy));
	assert_memory_equal(r.weights, copy, sizeof(copy));
	rig_fini(&r);
}

/* Others have ended it by an exchange whose sum this site has lost: what it kept is of an interval that is no more. */
static void test_a_copy_of_one_that_is_over_goes(void **state)
{
	const float common[ELEMENTS] = {9, 9, 9, 9, 9, 9, 9, 9};
	struct rig r;

	rig_init(&r);
	land(&r, 1, common, false);
	assert_false(r.site.window.midway.kept || r.site.window.open);
	assert_true(midway_tensor(&r.site.window.midway, &r.site.site, 0) == r.weights);
	assert_int_equal(r.site.exchanges, 1);
	rig_fini(&r);
}

static void test_who_comes_has_none(void **state)
{
	const float common[ELEMENTS] = {9, 9, 9, 9, 9, 9, 9, 9};
	struct rig r;

	rig_init(&r);
	r.site.has = false;
	land(&r, 0, common, false);
	assert_false(r.site.window.midway.kept);
	assert_true(r.site.window.strange && r.site.has);
	assert_memory_equal(r.weights, common, sizeof(common));
	rig_fini(&r);
}

/* Where the job has begun in the middle of an interval, as states are saved there. */
static void test_who_comes_exchanges_with_the_others(void **state)
{
	const float common[ELEMENTS] = {9, 9, 9, 9, 9, 9, 9, 9};
	struct rig r;

	for (unsigned restored = 0; restored < 2; restored++) { /* of a state, when the others have gone on */
		rig_init(&r);
		r.site.has = r.site.restored = r.site.goes_on = restored;
		land(&r, 0, common, false);
		assert_int_equal(r.site.site.since, THETA - 1);
		assert_false(r.site.restored || r.site.goes_on);
		rig_fini(&r);
	}
	rig_init(&r); /* who was there knows by itself */
	land(&r, 0, common, false);
	assert_int_equal(r.site.site.since, THETA / 2);
	rig_fini(&r);
}

/* What has not come whole changes nothing, and is asked for again. */
static void test_what_is_damaged_is_not_taken(void **state)
{
	const float common[ELEMENTS] = {9, 9, 9, 9, 9, 9, 9, 9};
	float copy[ELEMENTS];
	struct rig r;

	rig_init(&r);
	memcpy(copy, r.weights, sizeof(copy));
	land(&r, 1, common, true);
	assert_true(r.site.window.midway.kept);
	assert_memory_equal(r.weights, copy, sizeof(copy));
	assert_int_equal(r.site.exchanges, 0);
	rig_fini(&r);
}

/* NaN and infinity count as zero on their way, and at the sender too, or nobody could ever take them. */
static void test_no_numbers_that_count_as_zero(void **state)
{
	const float sent[ELEMENTS] = {9, NAN, 9, -INFINITY, 9, 9, 9, 9}, came[ELEMENTS] = {9, 0, 9, 0, 9, 9, 9, 9};
	struct slot own = {0};
	struct rig r;

	rig_init(&r);
	r.phub.settings.nan = PHUB_NAN_ZERO;
	r.phub.forked = true; /* so that no round begins */
	memcpy(r.site.site.anchor, sent, sizeof(sent));
	r.site.sync.root = OWN;
	r.site.sync.stage = 0;
	assert_true(course_sync_begin(&r.site, &own) < 0);
	assert_int_equal(own.check, check_of(came));
	rig_fini(&r);
}

/* A report that is lost on its way with the box is made anew, of the same losses; one that others have is not. */
static void test_losses_are_said_once(void **state)
{
	const float common[ELEMENTS] = {0};
	struct rig r;
	struct window *w = &r.site.window;

	rig_init(&r);
	w->batches = 30;
	w->trained = 20; /* of fewer than ten nothing is said */
	for (unsigned turn = 0; turn < 2; turn++) {
		window_begin(&r.site);
		window_try(&r.site);
		assert_true(w->home.train == 1.5);
		assert_int_equal(w->home.trained, 20);
	}
	land(&r, 0, common, false);
	w->batches += 7; /* of a batch that comes after it */
	w->trained++;
	land(&r, 1, common, false);
	assert_true(w->batches == 7);
	assert_int_equal(w->trained, 1);
	rig_fini(&r);
}

static uint64_t no_time(void *ctx)
{
	return 0;
}

static struct slot loaded_slot(const struct slot *own)
{
	return (struct slot){.flags = SLOT_HERE | SLOT_HAS | SLOT_LOADED,
		.steps = THETA / 2,
		.samples = 1,
		.check = 1,
		.terms = own->terms};
}

/* Of a job that begins: rank 0 has loaded a state, and this one has not. */
static void bare_beside_loaded(struct rig *r, uint64_t other_terms)
{
	struct phub_site *s = &r->site;
	struct slot own = {.flags = SLOT_HERE, .samples = 1}, root;

	rig_init(r);
	r->phub.forked = true; /* so that no round begins */
	s->has = false;
	s->sync.due = s->sync.takes = true;
	course_sync_begin(s, &own);
	root = loaded_slot(&own);
	own.terms ^= other_terms;
	memset(s->slots_in, 0, course_slots(s) * sizeof(float));
	slots_put(s->slots_in, ROOT, &root);
	slots_put(s->slots_in, OWN, &own);
}

/* Who has loaded a state is told as well, or it would wait for who is not. */
static void test_all_are_told_of_other_options(void **state)
{
	struct rig r;

	bare_beside_loaded(&r, 0);
	assert_int_equal(course_sync_agrees(&r.site), 0);
	rig_fini(&r);
	bare_beside_loaded(&r, UINT64_C(1) << 40);
	r.site.has = r.site.restored = true; /* as rank 0 sees it */
	assert_int_equal(course_sync_agrees(&r.site), -EBADMSG);
	assert_non_null(strstr(api_last_error()->text, "the site of rank 1 has other options"));
	rig_fini(&r);
}

/* A site that came to the others would have another anchor than the rest of its rack. */
static void test_with_a_site_within_all_load(void **state)
{
	struct rig r;

	bare_beside_loaded(&r, 0);
	assert_int_equal(course_sync_goes_on(&r.site), 1);
	assert_true(r.site.sync.due && r.site.sync.takes && r.site.goes_on);
	assert_int_equal(r.site.log.since, THETA / 2);
	r.phub.env.now = no_time;
	course_log_run(&r.site); /* who goes on with the log later on does not begin the job */
	assert_false(r.site.goes_on);
	rig_fini(&r);
	bare_beside_loaded(&r, 0);
	r.site.within = &r.site;
	assert_int_equal(course_sync_goes_on(&r.site), -EBADMSG);
	assert_non_null(strstr(api_last_error()->text, "1 of 2 sites have loaded a state"));
	rig_fini(&r);
}

static const struct key saved_key = {.name = "weight"};

static void rig_saves(struct rig *r)
{
	struct err e;

	rig_init(r);
	r->phub.forked = true;
	r->phub.keyring.keys = (struct key *)&saved_key;
	r->phub.env.now = no_time;
	assert_int_equal(unsound_init(&r->site, &e), 0);
}

/* Whatever number of samples a site says it has, it is there; and saving changes nothing. */
static void test_who_was_there_is_saved(void **state)
{
	uint64_t bytes;
	uint8_t *saved;
	struct err e;
	struct rig r;

	rig_saves(&r);
	r.site.present.count = 2;
	r.site.present.ranks[1] = 1;
	r.site.present.samples[0] = UINT64_MAX;
	r.site.present.samples[1] = 3;
	bytes = site_saved_bytes(&r.site);
	saved = malloc(bytes);
	assert_non_null(saved);
	site_saved_write(&r.site, saved);
	assert_int_equal(r.site.present.count, 2);
	r.site.present.count = 0;
	assert_int_equal(site_saved_read(&r.site, saved, bytes, &e), 0);
	assert_int_equal(r.site.present.count, 2);
	assert_int_equal(r.site.present.ranks[0], 0);
	assert_int_equal(r.site.present.samples[1], 3);
	free(saved);
	unsound_fini(&r.site);
	rig_fini(&r);
}

/* Whatever number of samples sites say, shares are parts of one. */
static void test_shares_of_any_samples(void **state)
{
	static const uint64_t samples[][2] = {{1, 3}, {UINT64_MAX, 2}, {UINT64_C(1) << 63, UINT64_C(1) << 63}, {0, 7}};
	static const double shares[] = {0.25, 1, 0.5, 0};
	struct rig r;

	rig_init(&r);
	r.site.weighted = true;
	r.site.present.count = 2;
	for (unsigned i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		memcpy(r.site.present.samples, samples[i], sizeof(samples[i]));
		assert_true(course_share(&r.site, 0) == shares[i]);
		assert_true(course_share(&r.site, 0) + course_share(&r.site, 1) <= 1);
	}
	rig_fini(&r);
}

/* A state that is sealed, but ends before what it says of tensors: nothing behind it is read. */
static void test_a_state_without_its_tensors(void **state)
{
	uint64_t bytes;
	uint8_t *saved;
	uint32_t crc;
	struct err e;
	struct rig r;

	rig_saves(&r);
	bytes = site_saved_bytes(&r.site);
	saved = malloc(bytes);
	assert_non_null(saved);
	site_saved_write(&r.site, saved);
	assert_int_equal(site_saved_read(&r.site, saved, bytes, &e), 0);
	for (bytes = 172; bytes < 240; bytes += 4) {
		memcpy(saved + 16, &bytes, sizeof(bytes));
		crc = crc_32c(0, saved, bytes - sizeof(crc));
		memcpy(saved + bytes - sizeof(crc), &crc, sizeof(crc));
		assert_int_equal(site_saved_read(&r.site, saved, bytes, &e), -EBADMSG);
	}
	free(saved);
	unsound_fini(&r.site);
	rig_fini(&r);
}

/* Rank 0 has written the log, and is there no more. */
static void log_turns(struct rig *r, const char *path)
{
	const struct slot own = {.flags = SLOT_HERE | SLOT_LOG, .samples = 1};
	struct phub_site *s = &r->site;

	rig_init(r);
	r->phub.forked = true;
	s->log.path = strdup(path);
	assert_non_null(s->log.path);
	s->log.run = 7;
	s->log.before = ROOT;
	s->begun = true;
	memset(s->slots_in, 0, course_slots(s) * sizeof(float));
	slots_put(s->slots_in, OWN, &own);
	for (unsigned t = 50; t <= 70; t += 5) {
		const struct record_site line = {.t = t, .action = "lost", .sites = 1, .reason = "gone"};

		course_log_site(s, &line);
	}
	course_log_turn(s);
}

static unsigned times(const char *text, const char *what)
{
	unsigned count = 0;

	for (; (text = strstr(text, what)); text++)
		count++;
	return count;
}

/* Lines like its own that the job has made before it began again, and one that was broken off, are not its own. */
static void test_who_goes_on_with_the_log_loses_nothing(void **state)
{
	static const char there[] = "\"sites\":3}\n"
				    "{\"scout\":\"site\",\"t\":50,\"rank\":0,\"action\":\"lost\",\"sites\":1}\n"
				    "{\"scout\":\"site\",\"t\":40,\"rank\":0,\"action\":\"restarted\",\"sites\":2}\n"
				    "{\"scout\":\"site\",\"t\":55,\"rank\":0,\"action\":\"lost\",\"sites\":1}\n"
				    "{\"scout\":\"site\",\"t\":60,\"rank\":0,\"action\":\"lost\",\"sit\n"
				    "{\"scout\":\"site\",\"t\":65,\"rank\":0,\"action\":\"lost\",\"sites\"";
	char path[] = "/tmp/phub-log-XXXXXX", head[RECORD_HEAD_BYTES], text[4096] = "";
	const int fd = mkstemp(path);
	struct rig r;

	assert_true(fd >= 0);
	assert_true(write(fd, head, record_head(7, head)) > 0);
	assert_int_equal(write(fd, there, sizeof(there) - 1), sizeof(there) - 1);
	log_turns(&r, path);
	assert_true(r.site.log.writes);
	assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
	assert_int_equal(times(text, "\"t\":50,"), 2);
	assert_int_equal(times(text, "\"t\":55,"), 1);
	assert_int_equal(times(text, "\"t\":60,"), 2);
	assert_int_equal(times(text, "\"t\":65,"), 2);
	assert_int_equal(times(text, "\"t\":70,"), 1);
	course_log_close(&r.site);
	rig_fini(&r);
	close(fd);
	unlink(path);
}

/* It looks for who is lost no more, either. */
static void test_a_log_that_cannot_go_on_leaves_nothing(void **state)
{
	struct rig r;

	log_turns(&r, "/dev/null/none");
	assert_int_equal(r.site.log.error, -ENOTDIR);
	r.site.log.path = strdup("/dev/null/none");
	assert_int_equal(census_begin(&r.site, true), 0);
	course_log_turn(&r.site);
	assert_null(r.site.log.path);
	assert_null(r.site.census.at);
	course_log_close(&r.site);
	rig_fini(&r);
}

/* All sites agree on what tensors say. */
static void test_tensors_tell_of_statistics(void **state)
{
	struct err e = {0};
	uint32_t before;
	struct rig r;

	rig_init(&r);
	before = scout_fingerprint(&r.site.scout_config);
	course_fini(&r.site);
	r.tensor.trained = false;
	r.site.scout_config.policy = SCOUT_PLUS;
	assert_int_equal(course_init(&r.site, &e), 0);
	assert_true(r.site.scout.config.plus.statistics);
	assert_int_not_equal(scout_fingerprint(&r.site.scout_config), before);
	before = scout_fingerprint(&r.site.scout_config);
	r.site.scout_config.plus.statistics = false;
	assert_int_not_equal(scout_fingerprint(&r.site.scout_config), before);
	rig_fini(&r);
}

TEST_PROGRAM(test_course_sync)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_copy_of_this_interval_stays),
		cmocka_unit_test(test_a_copy_of_one_that_is_over_goes),
		cmocka_unit_test(test_who_comes_has_none),
		cmocka_unit_test(test_who_comes_exchanges_with_the_others),
		cmocka_unit_test(test_what_is_damaged_is_not_taken),
		cmocka_unit_test(test_no_numbers_that_count_as_zero),
		cmocka_unit_test(test_losses_are_said_once),
		cmocka_unit_test(test_all_are_told_of_other_options),
		cmocka_unit_test(test_with_a_site_within_all_load),
		cmocka_unit_test(test_who_was_there_is_saved),
		cmocka_unit_test(test_shares_of_any_samples),
		cmocka_unit_test(test_a_state_without_its_tensors),
		cmocka_unit_test(test_who_goes_on_with_the_log_loses_nothing),
		cmocka_unit_test(test_a_log_that_cannot_go_on_leaves_nothing),
		cmocka_unit_test(test_tensors_tell_of_statistics),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
