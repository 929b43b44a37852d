/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of the library's memory is in the caller's hands (phub_alloc()), and results that the caller asks for later.
 */
#include "client/exchange.h"

#include <errno.h>

/* From now on results of this chunk land elsewhere; those that are here already move there. */
static void exchange_set_apart(struct exchange *x, struct flight *f)
{
	const struct chunk_span *span = f->span;
	bool landed = false;

	for (uint32_t i = 0; i < span->key_count; i++)
		landed = landed || x->keyring->keys[span->key_first + i].landed;
	if (landed && !f->apart && !x->mapped)
		exchange_copy(x, x->keyring->results + span->offset, x->keyring->arena + span->offset, span->bytes);
	f->apart = true;
}

int exchange_give(struct exchange *x, uint32_t index, void **push, const void **result, struct err *e)
{
	struct key *key = &x->keyring->keys[index];
	struct flight *first = &x->flights[key->chunk_first];
	int rc = 0;

	for (uint32_t i = 0; i < key->chunk_count; i++) {
		if (first[i].state != FLIGHT_IDLE)
			return err_set(e, -EBUSY,
				"%s: key '%s' shares a chunk whose round is in flight; wait for it first", x->who,
				key->name);
	}
	if (!x->mapped) {
		rc = keyring_take_arena(x->keyring, e);
		if (rc == 0)
			rc = keyring_take_results(x->keyring, e);
		if (rc == 0)
			rc = exchange_register(x, x->keyring->arena, &x->arena_known, e);
		if (rc == 0)
			rc = exchange_register(x, x->keyring->results, &x->results_known, e);
	}
	if (rc < 0)
		return rc;
	key->apart = true;
	for (uint32_t i = 0; i < key->chunk_count; i++)
		exchange_set_apart(x, &first[i]);
	if (push)
		*push = exchange_push_base(x, first) + key->offset;
	if (result)
		*result = exchange_result_base(x, first) + key->offset;
	return 0;
}

int exchange_copy_result(struct exchange *x, uint32_t index, void *dst, struct device *device, struct err *e)
{
	const struct key *key = &x->keyring->keys[index];
	const uint8_t *from = exchange_result_base(x, &x->flights[key->chunk_first]) + key->offset;

	if (device) {
		devices_pin(&x->devices, device, exchange_result_base(x, &x->flights[key->chunk_first]),
			x->keyring->plan.region_bytes, x->mapped);
		x->copied_bytes += key->bytes;
		return device_store_now(device, dst, from, key->bytes, e);
	}
	if (dst != from)
		exchange_copy(x, dst, from, key->bytes);
	return 0;
}
