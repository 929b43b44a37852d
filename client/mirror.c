/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a session's settings together by hand: a box has no options of a worker, and its environment's secret is not the
 * job's.
 */
#include "client/mirror.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

enum { MIRROR_BACKLOG_BYTES = 256 << 10 };

struct client_mirror {
	struct settings settings;
	struct client_session session;
};

/* Likewise for workers: whoever names something to know the box by wants TLS. */
static int mirror_take_tls(struct settings *s, bool wanted, struct err *e)
{
	const char *ca = getenv("PHUB_TLS_CA"), *pin = getenv("PHUB_TLS_PIN");

	ca = ca && *ca ? ca : NULL;
	pin = pin && *pin ? pin : NULL;
	if (wanted && !ca && !pin)
		return err_set(e, -EINVAL,
			"standby: phubs:// needs to know the standby: set PHUB_TLS_CA in the environment of phubd to a "
			"file "
			"with the authority of its certificate, or PHUB_TLS_PIN to its SHA-256, which it logs when it "
			"starts");
	return wanted || ca || pin ? stream_tls_worker(ca, pin, &s->tls, e) : 0;
}

static int mirror_settle(struct settings *s, const struct client_mirror_target *target, struct err *e)
{
	if (strlen(target->host) >= sizeof(s->url.host) || strlen(target->job) >= sizeof(s->url.job))
		return err_set(e, -EINVAL, "standby %.80s: the name of the host or the job is too long", target->host);
	memcpy(s->url.host, target->host, strlen(target->host) + 1);
	memcpy(s->url.job, target->job, strlen(target->job) + 1);
	s->url.port = target->port;
	s->world = 1;
	s->encrypt = target->encrypt;
	if (target->secret) {
		s->secret = calloc(1, target->secret_bytes + 1);
		if (!s->secret)
			return err_set(e, -ENOMEM, "no memory for the secret");
		memcpy(s->secret, target->secret, target->secret_bytes);
	}
	return mirror_take_tls(s, target->tls, e);
}

int client_mirror_open(const struct client_mirror_target *target, const struct client_env *env,
	struct client_mirror **out, struct err *e)
{
	struct client_mirror *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return err_set(e, -ENOMEM, "no memory for a session with the standby");
	rc = mirror_settle(&m->settings, target, e);
	if (rc < 0) {
		settings_fini(&m->settings);
		free(m);
		return rc;
	}
	client_session_init(&m->session, env, &m->settings);
	snprintf(m->session.who, sizeof(m->session.who), "mirror of job %s", target->job);
	m->session.mirror = target->hear;
	m->session.mirror_arg = target->arg;
	*out = m;
	return 0;
}

int client_mirror_step(struct client_mirror *m, uint64_t now_ns, struct err *e)
{
	struct client_session *s = &m->session;

	client_session_progress(s, now_ns);
	if (s->state == SESSION_OVER)
		return err_set(e, s->failure.code, "%s", s->failure.text);
	/* Who wants another try says so; the caller knows how often. */
	if (s->state == SESSION_DIALLING && s->trouble.code && s->trouble.code != -EINPROGRESS)
		return err_set(e, s->trouble.code, "box %s cannot be reached: %s", s->box, s->trouble.text);
	return s->state >= SESSION_JOINED;
}

int client_mirror_say(struct client_mirror *m, const Phub__Control *message)
{
	if (m->session.out.have > MIRROR_BACKLOG_BYTES)
		return -EAGAIN;
	return client_session_say(&m->session, message);
}

void client_mirror_session(const struct client_mirror *m, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = m->session.id;
	*key = m->session.key;
	*cores = m->session.cores;
}

int client_mirror_address(const struct client_mirror *m, const char *transport, char *out, size_t bytes, struct err *e)
{
	if (client_session_address(&m->session, transport, out, bytes) == 0)
		return 0;
	return err_set(e, -ENOTSUP, "box %s does not offer transport %s, by which its mirrors come; see its transports",
		m->session.box, transport);
}

int client_mirror_fd(const struct client_mirror *m, bool *write)
{
	return client_session_fd(&m->session, write);
}

uint64_t client_mirror_due(const struct client_mirror *m)
{
	return client_session_due(&m->session);
}

void client_mirror_close(struct client_mirror *m)
{
	if (!m)
		return;
	client_session_fini(&m->session);
	settings_fini(&m->settings);
	free(m);
}
