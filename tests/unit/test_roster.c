/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said to etcd and heard of it, as text, and who is up by that.
 */
#include "transport/roster.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last item that was told, and how many were. */
struct heard {
	unsigned count, deleted;
	char key[ETCD_KEY_BYTES], value[ETCD_VALUE_BYTES];
};

static void on_item(void *arg, const struct etcd_item *item)
{
	struct heard *h = arg;

	h->count++;
	h->deleted += !item->value;
	snprintf(h->key, sizeof(h->key), "%s", item->key);
	snprintf(h->value, sizeof(h->value), "%s", item->value ? item->value : "");
}

static void expect_text(char *text, const char *wanted)
{
	assert_non_null(text);
	assert_string_equal(text, wanted);
	free(text);
}

static void test_requests(void **state)
{
	const struct etcd_op ops[] = {
		{.key = "/p/a", .value = ETCD_READ}, {.key = "/p/a", .value = "{}", .lease = INT64_MAX}, {.key = "b"}};

	expect_text(etcd_text_grant(10), "{\"TTL\":\"10\"}");
	expect_text(etcd_text_lease(-5), "{\"ID\":\"-5\"}");
	expect_text(etcd_text_txn(ops, 3),
		"{\"success\":[{\"requestRange\":{\"key\":\"L3AvYQ==\"}},{\"requestPut\":{\"key\":\"L3AvYQ==\","
		"\"value\":\"e30="
		"\",\"lease\":\"9223372036854775807\"}},{\"requestDeleteRange\":{\"key\":\"Yg==\"}}]}");
	expect_text(etcd_text_range("/p/", NULL, 2, 0),
		"{\"key\":\"L3Av\",\"range_end\":\"L3Aw\",\"limit\":\"2\",\"revision\":\"0\"}");
	expect_text(etcd_text_range("/p/", "/p/a\x01", 2, 9),
		"{\"key\":\"L3AvYQE=\",\"range_end\":\"L3Aw\",\"limit\":\"2\",\"revision\":\"9\"}");
	expect_text(etcd_text_watch("/p/", 9),
		"{\"create_request\":{\"key\":\"L3Av\",\"range_end\":\"L3Aw\",\"start_revision\":\"10\"}}");
	expect_text(etcd_text_authenticate("u", "\"p\\"), "{\"name\":\"u\",\"password\":\"\\\"p\\\\\"}");
	assert_null(etcd_text_authenticate("u", "\xff\xfe")); /* JSON is UTF-8 */
}

static int range(const char *text, struct heard *h, struct etcd_page *page)
{
	struct err e;

	memset(h, 0, sizeof(*h));
	return etcd_text_read_range(text, strlen(text), on_item, h, page, &e);
}

static void test_range(void **state)
{
	struct etcd_page page;
	struct heard h;

	assert_int_equal(range("{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"L3AvYQ==\",\"value\":\"e30=\"}],"
			       "\"count\":\"1\"}",
				 &h, &page),
		0);
	assert_int_equal(h.count, 1);
	assert_string_equal(h.key, "/p/a");
	assert_string_equal(h.value, "{}");
	assert_int_equal(page.revision, 7);
	assert_false(page.more);
	/* gRPC leaves out what is empty: a key without a value has an empty one. */
	assert_int_equal(
		range("{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"L3AvYQ==\"}],\"more\":true}", &h, &page),
		0);
	assert_int_equal(h.count, 1);
	assert_true(page.more);
	assert_string_equal(page.last, "/p/a");
	/* Keys and values that are none of ours are left out: no base64, a zero in it, too long. */
	assert_int_equal(range("{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"L3A\"},{\"key\":\"L3.vYQ==\"},{"
			       "\"key\":\"YQBi\"},"
			       "{\"key\":7},7,{\"key\":\"YQ==\",\"value\":\"AA==\"}]}",
				 &h, &page),
		0);
	assert_int_equal(h.count, 0);
	assert_int_equal(range("{\"kvs\":[]}", &h, &page), -EPROTO);
	assert_int_equal(
		range("{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"YQBi\"}],\"more\":true}", &h, &page),
		-EPROTO);
	assert_int_equal(range("", &h, &page), -EPROTO);
	assert_int_equal(range("[]", &h, &page), -EPROTO);
	assert_int_equal(range("{\"header\":{\"revision\":\"7\"}", &h, &page), -EPROTO);
	assert_int_equal(range("{\"header\":{\"revision\":\"99999999999999999999\"}}", &h, &page), -EPROTO);
	assert_int_equal(range("{\"error\":\"no\"}", &h, &page), -EPROTO);
}

static void test_long(void **state)
{
	static char text[40000], value[ETCD_VALUE_BYTES * 2];
	struct etcd_page page;
	struct heard h;

	for (size_t length = ETCD_VALUE_BYTES - 4; length < ETCD_VALUE_BYTES + 4; length++) {
		size_t digits = length / 3 * 4;

		memset(value, 'Q', digits); /* "AAA" is "QUFB"; any letters will do */
		value[digits] = '\0';
		snprintf(text, sizeof(text),
			"{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"YQ==\",\"value\":\"%s\"}]}", value);
		assert_int_equal(range(text, &h, &page), 0);
		assert_int_equal(h.count, length / 3 * 3 < ETCD_VALUE_BYTES);
	}
}

static void test_watch(void **state)
{
	static const char created[] = "{\"result\":{\"header\":{\"revision\":\"3\"},\"created\":true}}";
	static const char events[] =
		"{\"result\":{\"header\":{\"revision\":\"4\"},\"events\":[{\"kv\":{\"key\":\"YQ==\",\"value\":"
		"\"e30=\"}},{\"type\":\"DELETE\",\"kv\":{\"key\":\"Yg==\"}}]}}";
	static const char over[] =
		"{\"result\":{\"header\":{\"revision\":\"5\"},\"canceled\":true,\"compact_revision\":\"4\"}}";
	static const char error[] = "{\"error\":{\"grpc_code\":7,\"message\":\"permission denied\"}}";
	struct heard h = {.count = 0};
	struct etcd_news news;
	struct err e;

	assert_int_equal(etcd_text_read_watch(created, strlen(created), on_item, &h, &news, &e), 0);
	assert_int_equal(news.revision, 3);
	assert_false(news.over);
	assert_int_equal(etcd_text_read_watch(events, strlen(events), on_item, &h, &news, &e), 0);
	assert_int_equal(h.count, 2);
	assert_int_equal(h.deleted, 1);
	assert_string_equal(h.key, "b");
	assert_int_equal(etcd_text_read_watch(over, strlen(over), on_item, &h, &news, &e), 0);
	assert_true(news.over);
	assert_int_equal(etcd_text_read_watch(error, strlen(error), on_item, &h, &news, &e), -EPROTO);
	assert_non_null(strstr(e.text, "permission denied"));
	assert_int_equal(etcd_text_read_watch("{}", 2, on_item, &h, &news, &e), -EPROTO);
}

static void test_leases(void **state)
{
	static const char alive[] = "{\"result\":{\"ID\":\"9\",\"TTL\":\"5\"}}", dead[] = "{\"result\":{\"ID\":\"9\"}}";
	static const char huge[] = "{\"ID\":\"9\",\"TTL\":\"99999999999\"}";
	int64_t lease = 0, ttl = -1;
	struct err e;

	assert_int_equal(etcd_text_read_keepalive(alive, strlen(alive), &ttl, &e), 0);
	assert_int_equal(ttl, 5);
	assert_int_equal(etcd_text_read_keepalive(dead, strlen(dead), &ttl, &e), 0);
	assert_int_equal(ttl, 0);
	assert_int_equal(etcd_text_read_keepalive("{}", 2, &ttl, &e), -EPROTO);
	assert_int_equal(etcd_text_read_grant("{}", 2, &lease, &ttl, &e), -EPROTO);
	assert_int_equal(etcd_text_read_grant(huge, strlen(huge), &lease, &ttl, &e), -EPROTO);
	assert_int_equal(lease, 0);
}

/* What is written is read. */
static void test_values(void **state)
{
	const struct roster_box box = {.address = "10.0.0.1:7077",
		.host = "n1",
		.rack = "r0",
		.uplink = "phubs://10.0.1.1:7077",
		.transports = "tcp, shm, verbs",
		.version = "0.1.0",
		.cores = 8,
		.root = "top",
		.tls = true,
		.since = 1795527628};
	const struct roster_job job = {.state = "running", .workers = 4, .known = 6, .world = 8, .round = 123456789012};
	struct roster_item is;
	char *value = roster_write_box(&box), key[ETCD_KEY_BYTES];

	assert_true(roster_box_key("/phub", "b1", key, sizeof(key)));
	assert_string_equal(key, "/phub/boxes/b1");
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key, .value = value}, &is), 0);
	free(value);
	assert_int_equal(is.kind, ROSTER_BOX);
	assert_false(is.gone);
	assert_string_equal(is.box.name, "b1");
	assert_string_equal(is.box.address, box.address);
	assert_string_equal(is.box.host, box.host);
	assert_string_equal(is.box.rack, box.rack);
	assert_string_equal(is.box.uplink, box.uplink);
	assert_string_equal(is.box.transports, box.transports);
	assert_string_equal(is.box.version, box.version);
	assert_string_equal(is.box.root, box.root);
	assert_int_equal(is.box.cores, 8);
	assert_true(is.box.tls);
	assert_int_equal(is.box.since, box.since);
	value = roster_write_job(&job);
	assert_true(roster_job_key("/phub", "train", "b1", key, sizeof(key)));
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key, .value = value}, &is), 0);
	free(value);
	assert_int_equal(is.kind, ROSTER_JOB);
	assert_string_equal(is.job.name, "train");
	assert_string_equal(is.job.box, "b1");
	assert_string_equal(is.job.state, "running");
	assert_int_equal(is.job.workers, 4);
	assert_int_equal(is.job.known, 6);
	assert_int_equal(is.job.world, 8);
	assert_int_equal(is.job.round, job.round);
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key, .value = NULL}, &is), 0);
	assert_true(is.gone);
	assert_string_equal(is.job.name, "train");
}

static void on_root(void *arg, const struct etcd_item *item)
{
	*(struct etcd_item *)arg = (struct etcd_item){.created = item->created, .lease = item->lease};
}

/* What a root's key holds may be anything. */
static void test_root_values(void **state)
{
	static const char again[] = "{\"box\":\"b1\",\"address\":\"h:1\",\"epoch\":7}";
	struct roster_root read = {.box = ""};

	/* Of one that went on: no epoch is from later than its key. */
	assert_int_equal(roster_read_root(again, 9, &read), 0);
	assert_int_equal(read.epoch, 7);
	assert_int_equal(roster_read_root(again, 5, &read), 0);
	assert_int_equal(read.epoch, 5);
	assert_int_equal(roster_read_root("{\"box\":\"b1\"}", 1, &read), -EINVAL);
	assert_int_equal(roster_read_root("{\"box\":\"b/1\",\"address\":\"h:1\"}", 1, &read), -EINVAL);
	assert_int_equal(roster_read_root("[]", 1, &read), -EINVAL);
	assert_int_equal(roster_read_root("", 1, &read), -EINVAL);
}

/* A root's key: what is asked, and what either answer says. */
static void test_claim(void **state)
{
	static const char won[] =
		"{\"header\":{\"revision\":\"12\"},\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}";
	static const char lost[] =
		"{\"header\":{\"revision\":\"13\"},\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\","
		"\"create_revision\":\"12\",\"lease\":\"-9\",\"value\":\"e30=\"}]}}]}";
	const struct roster_root root = {.box = "b1", .address = "10.0.0.1:7077", .tls = true, .since = 1795527628};
	struct roster_root read = {.box = ""};
	struct roster_item is;
	struct etcd_item item = {.created = 0};
	char key[ETCD_KEY_BYTES], *value = roster_write_root(&root), *text;
	int64_t revision = 0;
	bool is_won = false;
	struct err e;

	assert_true(roster_root_key("/phub", "top", key, sizeof(key)));
	assert_string_equal(key, "/phub/roots/top");
	assert_int_equal(roster_read_root(value, 9, &read), 0);
	assert_int_equal(read.epoch, 9);
	assert_string_equal(read.box, "b1");
	assert_string_equal(read.address, "10.0.0.1:7077");
	assert_true(read.tls);
	assert_int_equal(read.since, root.since);
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key, .value = value, .created = 12}, &is), 0);
	assert_int_equal(is.kind, ROSTER_ROOT);
	assert_string_equal(is.root.name, "top");
	assert_string_equal(is.root.box, "b1");
	assert_int_equal(is.root.epoch, 12);
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key, .value = "me"}, &is), -EINVAL);
	assert_int_equal(
		roster_read("/phub", &(struct etcd_item){.key = "/phub/roots/a/b", .value = value}, &is), -EINVAL);
	assert_int_equal(roster_read("/phub", &(struct etcd_item){.key = key}, &is), 0);
	assert_true(is.gone);
	free(value);
	assert_true(roster_rooted_key("/phub", "top", key, sizeof(key)));
	assert_string_equal(key, "/phub/rooted/top");
	text = etcd_text_claim("a", "{}", 7, "b", 0);
	assert_string_equal(text,
		"{\"compare\":[{\"key\":\"YQ==\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"createRevision\":\"0\"}],"
		"\"success\":[{\"requestPut\":{\"key\":\"YQ==\",\"value\":\"e30=\",\"lease\":\"7\"}},"
		"{\"requestPut\":{\"key\":\"Yg==\",\"value\":\"e30=\",\"lease\":\"0\"}}],"
		"\"failure\":[{\"requestRange\":{\"key\":\"YQ==\"}}]}");
	free(text);
	text = etcd_text_claim("a", "{}", 7, "b", 5);
	assert_string_equal(text,
		"{\"compare\":[{\"key\":\"YQ==\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"createRevision\":\"0\"},"
		"{\"key\":\"Yg==\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"modRevision\":\"5\"}],"
		"\"success\":[{\"requestPut\":{\"key\":\"YQ==\",\"value\":\"e30=\",\"lease\":\"7\"}},"
		"{\"requestPut\":{\"key\":\"Yg==\",\"value\":\"e30=\",\"lease\":\"0\"}}],"
		"\"failure\":[{\"requestRange\":{\"key\":\"YQ==\"}}]}");
	free(text);
	assert_int_equal(etcd_text_read_claim(won, strlen(won), &is_won, &revision, on_root, &item, &e), 0);
	assert_true(is_won);
	assert_int_equal(revision, 12);
	assert_int_equal(item.created, 0);
	assert_int_equal(etcd_text_read_claim(lost, strlen(lost), &is_won, &revision, on_root, &item, &e), 0);
	assert_false(is_won);
	assert_int_equal(item.created, 12);
	assert_int_equal(item.lease, -9);
	assert_int_equal(etcd_text_read_claim("{}", 2, &is_won, &revision, on_root, &item, &e), -EPROTO);
}

static int read_at(const char *key, const char *value, struct roster_item *is)
{
	return roster_read("/phub", &(struct etcd_item){.key = key, .value = value}, is);
}

static void test_strange_values(void **state)
{
	static const char odd[] =
		"{\"address\":\"h:1\",\"rack\":\"a\\u001bb\",\"cores\":-3,\"since\":\"x\",\"transports\":[7,\"tcp\","
		"\"\\n\"],"
		"\"host\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"}";
	static const char name64[] = "/phub/boxes/0123456789012345678901234567890123456789012345678901234567890123";
	struct roster_item is;

	assert_int_equal(read_at("/phub/boxes/a", odd, &is), 0);
	assert_string_equal(is.box.rack, "");
	assert_string_equal(is.box.host, "");
	assert_string_equal(is.box.transports, "tcp");
	assert_int_equal(is.box.cores, 0);
	assert_int_equal(is.box.since, 0);
	assert_int_equal(read_at("/phub/boxes/a", "{}", &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/a", "{\"address\":\"h /\"}", &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/a", "[]", &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/a", "", &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/", odd, &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/a/b", odd, &is), -EINVAL);
	assert_int_equal(read_at("/phub/boxes/a b", odd, &is), -EINVAL);
	assert_int_equal(read_at(name64, odd, &is), -EINVAL);
	assert_int_equal(read_at("/phub/jobs/a", "{}", &is), -EINVAL);
	assert_int_equal(read_at("/phub/jobs//b", "{}", &is), -EINVAL);
	assert_int_equal(read_at("/phub/jobs/a/b/c", "{}", &is), -EINVAL);
	assert_int_equal(read_at("/phub/other/a", "{}", &is), -EINVAL);
	assert_int_equal(read_at("/phubboxes/a", odd, &is), -EINVAL);
	assert_int_equal(read_at("/p", odd, &is), -EINVAL);
	assert_int_equal(read_at("/phub/jobs/a/b", "{}", &is), 0);
	assert_true(roster_prefix_valid("/phub") && roster_prefix_valid("a/b"));
	assert_false(roster_prefix_valid("") || roster_prefix_valid("/") || roster_prefix_valid("a/") ||
		     roster_prefix_valid("a b"));
}

static void put(struct roster *r, enum roster_kind kind, const char *name, const char *box, bool gone, int wanted)
{
	struct roster_item item = {.kind = kind, .gone = gone};

	snprintf(item.box.name, sizeof(item.box.name), "%s", name);
	snprintf(item.job.name, sizeof(item.job.name), "%s", name);
	snprintf(item.root.name, sizeof(item.root.name), "%s", name);
	snprintf(item.job.box, sizeof(item.job.box), "%s", box);
	assert_int_equal(roster_put(r, &item), wanted);
}

static void test_list(void **state)
{
	static const char *const order[] = {"m", "c", "x", "a", "q", "b"};
	struct roster r = {.boxes = NULL};
	char name[16];

	assert_null(roster_find_box(&r, "a"));
	for (unsigned i = 0; i < 6; i++)
		put(&r, ROSTER_BOX, order[i], "", false, 0);
	put(&r, ROSTER_BOX, "c", "", false, 0);
	put(&r, ROSTER_BOX, "nobody", "", true, 0);
	assert_int_equal(r.box_count, 6);
	for (unsigned i = 1; i < 6; i++)
		assert_true(strcmp(r.boxes[i - 1].name, r.boxes[i].name) < 0);
	put(&r, ROSTER_BOX, "c", "", true, 0);
	assert_null(roster_find_box(&r, "c"));
	assert_non_null(roster_find_box(&r, "x"));
	put(&r, ROSTER_JOB, "j", "b", false, 0);
	put(&r, ROSTER_JOB, "j", "a", false, 0);
	put(&r, ROSTER_JOB, "i", "z", false, 0);
	assert_string_equal(r.jobs[0].name, "i");
	assert_string_equal(r.jobs[1].box, "a");
	put(&r, ROSTER_JOB, "j", "a", true, 0);
	assert_null(roster_find_job(&r, "j", "a"));
	assert_non_null(roster_find_job(&r, "j", "b"));
	for (unsigned i = r.box_count; i < ROSTER_BOXES_MAX; i++) {
		snprintf(name, sizeof(name), "box%u", i);
		put(&r, ROSTER_BOX, name, "", false, 0);
	}
	put(&r, ROSTER_BOX, "one more", "", false, -ENOSPC);
	assert_int_equal(r.box_count, ROSTER_BOXES_MAX);
	put(&r, ROSTER_ROOT, "s", "", false, 0);
	put(&r, ROSTER_ROOT, "r", "", false, 0);
	put(&r, ROSTER_ROOT, "r", "", false, 0);
	put(&r, ROSTER_ROOT, "q", "", true, 0);
	assert_int_equal(r.root_count, 2);
	assert_string_equal(r.roots[0].name, "r");
	put(&r, ROSTER_ROOT, "r", "", true, 0);
	assert_null(roster_find_root(&r, "r"));
	assert_non_null(roster_find_root(&r, "s"));
	for (unsigned i = r.root_count; i < ROSTER_ROOTS_MAX; i++) {
		snprintf(name, sizeof(name), "root%u", i);
		put(&r, ROSTER_ROOT, name, "", false, 0);
	}
	put(&r, ROSTER_ROOT, "one more", "", false, -ENOSPC);
	roster_fini(&r);
}

static void add(struct roster *r, const char *name, const char *host, const char *rack, const char *address)
{
	struct roster_item item = {.kind = ROSTER_BOX};

	snprintf(item.box.name, sizeof(item.box.name), "%s", name);
	snprintf(item.box.host, sizeof(item.box.host), "%s", host);
	snprintf(item.box.rack, sizeof(item.box.rack), "%s", rack);
	snprintf(item.box.address, sizeof(item.box.address), "%s", address);
	assert_int_equal(roster_put(r, &item), 0);
}

static void expect_choice(const struct roster *r, const char *host, const char *rack, const char *job, const char *name)
{
	const struct roster_box *box = roster_choose(r, host, rack, job);

	assert_non_null(box);
	assert_string_equal(box->name, name);
}

static void test_choice(void **state)
{
	struct roster r = {.boxes = NULL};

	assert_null(roster_choose(&r, "h1", "r1", "j"));
	add(&r, "loop", "h9", "", "127.0.0.1:1");
	assert_null(roster_choose(&r, "h1", "", "j"));
	expect_choice(&r, "h9", "", "j", "loop");
	add(&r, "m1", "h1", "r1", "10.0.0.1:1");
	add(&r, "m2", "h2", "r1", "10.0.0.2:1");
	add(&r, "m3", "h3", "r2", "10.0.0.3:1");
	put(&r, ROSTER_JOB, "j", "m2", false, 0);
	expect_choice(&r, "h3", "r1", "j", "m3"); /* on this host */
	expect_choice(&r, "h4", "r2", "j", "m3"); /* in this rack, though the job is elsewhere */
	expect_choice(&r, "h4", "r1", "j", "m2"); /* of those the one that has it */
	expect_choice(&r, "h4", "r1", "k", "m1"); /* or the first */
	expect_choice(&r, "h4", "r7", "j", "m2"); /* that has the job */
	expect_choice(&r, "", "", "k", "m1");     /* the first by name that can be reached */
	expect_choice(&r, "h9", "r2", "j", "loop");
	roster_fini(&r);
}

TEST_PROGRAM(test_roster)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_range),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_watch),
		cmocka_unit_test(test_leases),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_root_values),
		cmocka_unit_test(test_claim),
		cmocka_unit_test(test_strange_values),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_choice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
