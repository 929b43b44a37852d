/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes as what etcd answers. The first says as which answer; what is taken obeys its bounds, and a box or a
 * job that is taken is written and read back as itself.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/etcd_text.h"
#include "transport/roster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_printable(const char *text, size_t bytes)
{
	size_t length = strnlen(text, bytes);

	fuzz_require(length < bytes);
	for (size_t i = 0; i < length; i++)
		fuzz_require(text[i] >= ' ' && text[i] <= '~');
}

static void fuzz_check_box(const struct roster_box *box)
{
	fuzz_require(roster_name_valid(box->name));
	fuzz_printable(box->address, sizeof(box->address));
	fuzz_printable(box->host, sizeof(box->host));
	fuzz_printable(box->rack, sizeof(box->rack));
	fuzz_printable(box->uplink, sizeof(box->uplink));
	fuzz_printable(box->transports, sizeof(box->transports));
	fuzz_printable(box->root, sizeof(box->root));
	fuzz_printable(box->version, sizeof(box->version));
}

static void fuzz_write_back(const char *key, const struct roster_item *is)
{
	char *value = is->kind == ROSTER_BOX    ? roster_write_box(&is->box)
		      : is->kind == ROSTER_ROOT ? roster_write_root(&is->root)
						: roster_write_job(&is->job);
	struct roster_item again;

	fuzz_require(value != NULL);
	fuzz_require(roster_read("/phub", &(struct etcd_item){.key = key, .value = value}, &again) == 0);
	fuzz_require(again.kind == is->kind);
	if (is->kind == ROSTER_BOX)
		fuzz_require(strcmp(again.box.address, is->box.address) == 0 && again.box.since == is->box.since);
	else if (is->kind == ROSTER_ROOT)
		fuzz_require(strcmp(again.root.box, is->root.box) == 0 && again.root.since == is->root.since);
	else
		fuzz_require(memcmp(&again.job, &is->job, sizeof(again.job)) == 0);
	free(value);
}

static void fuzz_check_root(const char *value)
{
	struct roster_root root;

	if (!value || roster_read_root(value, 7, &root) < 0)
		return;
	fuzz_require(roster_name_valid(root.box) && root.epoch <= 7);
	fuzz_printable(root.address, sizeof(root.address));
}

static void fuzz_on_item(void *arg, const struct etcd_item *item)
{
	struct roster *roster = arg;
	struct roster_item is;

	fuzz_require(strlen(item->key) < ETCD_KEY_BYTES);
	fuzz_require(!item->value || strlen(item->value) < ETCD_VALUE_BYTES);
	fuzz_check_root(item->value);
	if (roster_read("/phub", item, &is) < 0)
		return;
	if (!is.gone && is.kind == ROSTER_BOX)
		fuzz_check_box(&is.box);
	if (!is.gone)
		fuzz_write_back(item->key, &is);
	fuzz_require(roster_put(roster, &is) <= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct roster roster = {.boxes = NULL};
	struct etcd_page page;
	struct etcd_news news;
	char token[64], why[64];
	int64_t lease, ttl;
	bool won;
	struct err e = {0};
	const char *text = (const char *)data + 1;

	if (size == 0)
		return 0;
	size--;
	switch (data[0] % 8) {
	case 0:
		if (etcd_text_read_range(text, size, fuzz_on_item, &roster, &page, &e) == 0)
			fuzz_require(page.revision > 0 && strlen(page.last) < sizeof(page.last));
		break;
	case 1:
		(void)etcd_text_read_watch(text, size, fuzz_on_item, &roster, &news, &e);
		break;
	case 2:
		(void)etcd_text_read_txn(text, size, fuzz_on_item, &roster, &e);
		break;
	case 3:
		if (etcd_text_read_grant(text, size, &lease, &ttl, &e) == 0)
			fuzz_require(lease != 0 && ttl > 0);
		break;
	case 4:
		if (etcd_text_read_keepalive(text, size, &ttl, &e) == 0)
			fuzz_require(ttl >= 0);
		break;
	case 5:
		if (etcd_text_read_token(text, size, token, sizeof(token), &e) == 0)
			fuzz_require(strlen(token) < sizeof(token) && !strpbrk(token, "\r\n"));
		break;
	case 6:
		if (etcd_text_read_claim(text, size, &won, &lease, fuzz_on_item, &roster, &e) == 0)
			fuzz_require(lease > 0);
		break;
	default:
		fuzz_require(etcd_text_read_error(text, size, why, sizeof(why)) > 0);
		break;
	}
	roster_fini(&roster);
	return 0;
}
