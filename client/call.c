/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a session's settings together by hand: a box has no options of a worker, and its environment's secret is not the
 * job's.
 */
#include "client/call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

enum { CALL_BACKLOG_BYTES = 256 << 10 };

struct call_peer {
	struct settings settings;
	struct client_session session;
	char own_host[256], own_name[64];
};

/* Likewise for workers: whoever names something to know the box by wants TLS. */
static int call_take_tls(struct settings *s, const struct call_target *target, struct err *e)
{
	const char *ca = getenv("PHUB_TLS_CA"), *pin = getenv("PHUB_TLS_PIN");

	ca = ca && *ca ? ca : NULL;
	pin = pin && *pin ? pin : NULL;
	if (target->tls && !ca && !pin)
		return err_set(e, -EINVAL,
			"%s: phubs:// needs to know the other box: set PHUB_TLS_CA in the environment of phubd to a "
			"file "
			"with the authority of its certificate, or PHUB_TLS_PIN to its SHA-256, which it logs when it "
			"starts",
			target->what);
	return target->tls || ca || pin ? stream_tls_worker(ca, pin, &s->tls, e) : 0;
}

static int call_settle(struct settings *s, const struct call_target *target, struct err *e)
{
	if (strlen(target->host) >= sizeof(s->url.host) || strlen(target->job) >= sizeof(s->url.job))
		return err_set(e, -EINVAL, "%s %.80s: the name of the host or the job is too long", target->what,
			target->host);
	memcpy(s->url.host, target->host, strlen(target->host) + 1);
	memcpy(s->url.job, target->job, strlen(target->job) + 1);
	s->url.port = target->port;
	s->world = target->below ? target->below : 1;
	s->encrypt = target->encrypt;
	s->transport = target->transport ? strdup(target->transport) : NULL;
	if (target->transport && !s->transport)
		return err_set(e, -ENOMEM, "no memory for a transport's name");
	if (target->secret) {
		s->secret = calloc(1, target->secret_bytes + 1);
		if (!s->secret)
			return err_set(e, -ENOMEM, "no memory for the secret");
		memcpy(s->secret, target->secret, target->secret_bytes);
	}
	return call_take_tls(s, target, e);
}

static int call_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	struct call_peer *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, -ENOMEM, "no memory for a session with the %s", target->what);
	rc = call_settle(&p->settings, target, e);
	if (rc < 0) {
		settings_fini(&p->settings);
		free(p);
		return rc;
	}
	client_session_init(&p->session, ctx, &p->settings);
	snprintf(p->session.who, sizeof(p->session.who), "%s of job %s", target->below ? target->what : "mirror",
		target->job);
	p->session.call = target->hear;
	p->session.call_arg = target->arg;
	p->session.below = target->below > 0;
	p->session.peer = target->peer;
	p->session.exchange = target->exchange;
	p->session.root = target->root;
	p->session.root_least = target->least;
	snprintf(p->own_host, sizeof(p->own_host), "%s", target->own_host ? target->own_host : "");
	snprintf(p->own_name, sizeof(p->own_name), "%s", target->own_name ? target->own_name : "");
	p->session.own_host = p->own_host;
	p->session.own_name = p->own_name;
	p->session.own_port = target->own_port;
	*out = p;
	return 0;
}

static int call_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	struct client_session *s = &p->session;

	client_session_progress(s, now_ns);
	if (s->state == SESSION_OVER)
		return err_set(e, s->failure.code, "%s", s->failure.text);
	/* Who wants another try says so; the caller knows how often. */
	if (s->state == SESSION_DIALLING && s->trouble.code && s->trouble.code != -EINPROGRESS)
		return err_set(e, s->trouble.code, "box %s cannot be reached: %s", s->box, s->trouble.text);
	return s->state >= SESSION_JOINED;
}

static int call_say(struct call_peer *p, const Phub__Control *message)
{
	if (p->session.out.have > CALL_BACKLOG_BYTES)
		return -EAGAIN;
	return client_session_say(&p->session, message);
}

static void call_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = p->session.id;
	*key = p->session.key;
	*cores = p->session.cores;
}

static uint64_t call_root(const struct call_peer *p)
{
	return p->session.root_told;
}

static const char *call_sibling(const struct call_peer *p, uint16_t *port)
{
	*port = p->session.sibling.port;
	return *p->session.sibling.host ? p->session.sibling.host : NULL;
}

static int call_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	if (p->session.unmapped && strcmp(transport, "shm") == 0)
		return err_set(e, -EBUSY, "the job runs there, and began without shared memory for boxes");
	if (client_session_address(&p->session, transport, out, bytes) == 0)
		return 0;
	return err_set(e, -ENOTSUP, "box %s does not offer transport %s, by which boxes reach it; see its transports",
		p->session.box, transport);
}

static int call_fd(const struct call_peer *p, bool *write)
{
	return client_session_fd(&p->session, write);
}

static void call_close(struct call_peer *p)
{
	if (!p)
		return;
	client_session_fini(&p->session);
	settings_fini(&p->settings);
	free(p);
}

const struct call_ops client_call_ops = {
	.open = call_open,
	.step = call_step,
	.say = call_say,
	.session = call_session,
	.root = call_root,
	.sibling = call_sibling,
	.address = call_address,
	.fd = call_fd,
	.close = call_close,
};
