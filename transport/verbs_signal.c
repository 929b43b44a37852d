/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs_signal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/le.h"

/* ---- signals ---- */

struct signal *verbs_say(struct verbs *v, const struct verbs_conn *c, enum verbs_signal type)
{
	struct signal begun = {
		.session = c->session, .core = c->core, .number = c->number, .carrier = c->spec ? c->spec->carrier : 0};

	*signal_write(&begun, 1) = (uint8_t)type;
	return signal_list_add(&v->said, &begun);
}

/* Who accepts nobody is asked for signals in each step. */
int verbs_signal_take(struct transport *head, struct signal *out)
{
	struct verbs *v = (struct verbs *)head;

	if (v->apart) {
		verbs_regions_reap(v);
		for (unsigned i = 0; i < v->device_count; i++)
			verbs_device_listen(&v->devices[i]);
	}
	return signal_list_take(&v->said, out);
}

void verbs_say_gone(struct verbs *v, const struct verbs_conn *c, int error)
{
	struct signal *s = verbs_say(v, c, VERBS_GONE);

	if (!s)
		return;
	le_put32(signal_write(s, 4), handshake_code_from_errno(error < 0 ? -error : error));
	*signal_write(s, 1) = c->dead_rails;
}

void verbs_say_rails(struct signal *s, const struct verbs_conn *c)
{
	le_put64(signal_write(s, 8), c->token);
	le_put64(signal_write(s, 8), (uintptr_t)c->fixed.base);
	*signal_write(s, 1) = (uint8_t)c->rail_count;
	for (uint32_t i = 0; i < c->rail_count; i++) {
		const struct verbs_rail *r = &c->rails[i];
		uint8_t *at = signal_write(s, VERBS_RAIL_BYTES);

		memcpy(at, r->device->gid.raw, VERBS_GID_BYTES);
		le_put32(at + 16, (uint32_t)r->device->about.rate_mbps);
		le_put16(at + 20, r->device->lid);
		at[22] = (uint8_t)r->device->mtu;
		at[23] = r->peer_port;
		le_put32(at + 24, r->qp ? r->qp->qp_num : 0);
		le_put32(at + 28, r->psn);
		le_put32(at + 32, r->port->bell->qp_num);
		le_put32(at + 36, r->fixed_mr ? r->fixed_mr->rkey : 0);
	}
}

int verbs_hear_rails(struct signal_reader *in, struct verbs_conn *c)
{
	uint32_t count;

	c->peer_token = le_get64(signal_read(in, 8));
	c->fixed_base = le_get64(signal_read(in, 8));
	count = *signal_read(in, 1);
	if (count < 1 || count > VERBS_RAILS_MAX || (!c->is_box && count != c->rail_count))
		return -EPROTO;
	c->rail_count = count;
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *at = signal_read(in, VERBS_RAIL_BYTES);
		struct verbs_rail *r = &c->rails[i];

		memcpy(r->peer_gid.raw, at, VERBS_GID_BYTES);
		r->rate_mbps = le_get32(at + 16);
		r->peer_lid = le_get16(at + 20);
		r->peer_mtu = at[22];
		r->peer_port = at[23];
		r->peer_qpn = le_get32(at + 24);
		r->peer_psn = le_get32(at + 28);
		r->peer_bell = le_get32(at + 32);
		r->fixed_rkey = le_get32(at + 36);
		if (r->peer_mtu < IBV_MTU_256 || r->peer_mtu > IBV_MTU_4096 || r->rate_mbps == 0)
			return -EPROTO;
	}
	return signal_read_all(in) ? 0 : -EPROTO;
}

void verbs_name_peer(struct verbs_conn *c, uint32_t rail)
{
	const struct verbs_rail *r = &c->rails[rail];
	char gid[INET6_ADDRSTRLEN];
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (memcmp(r->peer_gid.raw, mapped, sizeof(mapped)) == 0)
		inet_ntop(AF_INET, r->peer_gid.raw + 12, gid, sizeof(gid));
	else
		inet_ntop(AF_INET6, r->peer_gid.raw, gid, sizeof(gid));
	snprintf(c->conn.peer, sizeof(c->conn.peer), "%.45s by %.20s port %u", gid, r->device->about.device,
		r->device->about.port);
}

/* ---- what both ends need before the first message ---- */

int verbs_conn_prepare(struct verbs_conn *c, struct err *e)
{
	c->asked = calloc(c->spec->chunk_count, sizeof(*c->asked));
	if (!c->asked || verbs_rails_spread(c) < 0)
		return err_set(e, -ENOMEM, "verbs: no memory for %u chunks", c->spec->chunk_count);
	c->chunk_bits = 1;
	while (c->chunk_bits < 32 && c->spec->chunk_count > UINT32_C(1) << c->chunk_bits)
		c->chunk_bits++;
	c->unsent_max = c->verbs->send_bytes_max;
	c->credit = c->spec->window;
	return 0;
}

struct verbs_conn *verbs_conn_create(struct verbs *v, bool is_box)
{
	struct verbs_conn *c = calloc(1, sizeof(*c));
	uint8_t random[PROOF_NONCE];

	if (!c)
		return NULL;
	if (proof_nonce(random) < 0) {
		free(c);
		return NULL;
	}
	c->conn.transport = &v->transport;
	c->verbs = v;
	c->is_box = is_box;
	c->state = VERBS_SHAKING;
	c->token = le_get64(random);
	list_init(&c->ring);
	list_init(&c->report);
	list_init(&c->quiet);
	list_init(&c->list);
	for (unsigned i = 0; i < VERBS_RAILS_MAX; i++)
		c->rails[i].small.fd = -1;
	c->fixed.fd = -1;
	return c;
}

void verbs_conn_undo(struct verbs_conn *c, struct verbs_queue *owner)
{
	list_remove(&c->list);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++)
		verbs_rail_destroy(&c->rails[i], owner);
	if (owner)
		verbs_forget(owner, c);
	verbs_conn_free(c);
}
