/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and owns what phub_connect() was given. Of the environment launcher.c reads rank and
 * world, and hostbox.c and hostbox_start.c what concerns a box of this host; all else is read here.
 */
#include "client/settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/launcher.h"
#include "phub/base/secret.h"
#include "topology/chunking.h"
#include "transport/wire.h"

enum { SETTINGS_TIMEOUT_MS = 30000, SETTINGS_MOVE_MS = 45000 };

/* ---- defaults ---- */

void phub_options_init(struct phub_options *options)
{
	*options = (struct phub_options){
		.size = sizeof(*options),
		.rank = PHUB_FROM_ENVIRONMENT,
		.world = PHUB_FROM_ENVIRONMENT,
		.timeout_ms = SETTINGS_TIMEOUT_MS,
		.move_ms = SETTINGS_MOVE_MS,
	};
}

void phub_hyper_init(enum phub_optimizer optimizer, struct phub_hyper *hyper)
{
	bool momentum = optimizer == PHUB_MOMENTUM || optimizer == PHUB_NESTEROV;

	*hyper = (struct phub_hyper){
		.lr = optimizer == PHUB_ADAGRAD ? 0.01 : 0.001,
		.momentum = momentum ? 0.9 : 0,
		.weight_decay = optimizer == PHUB_ADAMW ? 0.01 : 0,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = optimizer == PHUB_ADAGRAD ? 1e-10 : 1e-8,
	};
}

/* ---- rank and world ---- */

static int settings_take_rank(struct settings *s, const struct phub_options *o, struct err *e)
{
	int rank = o->rank, world = o->world;
	int rc;

	if (rank < PHUB_FROM_ENVIRONMENT || world < PHUB_FROM_ENVIRONMENT)
		return err_set(
			e, -EINVAL, "job %s: rank %d of world %d; neither may be negative", s->url.job, rank, world);
	rc = launcher_discover(&rank, &world, e);
	if (rc < 0)
		return rc;
	if (world < 1 || (unsigned)world > WIRE_WORLD_MAX)
		return err_set(e, -ERANGE, "job %s: a world of %d; allowed are 1 to %u workers", s->url.job, world,
			WIRE_WORLD_MAX);
	if (rank >= world)
		return err_set(e, -ERANGE, "job %s: rank %d is outside a world of %d; ranks count from 0", s->url.job,
			rank, world);
	s->rank = (uint32_t)rank;
	s->world = (uint32_t)world;
	return 0;
}

/* ---- the secret ---- */

static int settings_read_secret_file(struct settings *s, const char *path, struct err *e)
{
	char buf[SETTINGS_SECRET_BYTES + 1];
	struct err why;
	size_t length;
	int rc = secret_read_file(path, buf, sizeof(buf), &length, &why);

	if (rc < 0)
		return err_set(e, rc, "PHUB_SECRET_FILE: %s", why.text);
	if (length > SETTINGS_SECRET_BYTES)
		rc = err_set(e, -EINVAL, "PHUB_SECRET_FILE '%s' is not a file of at most %d bytes", path,
			SETTINGS_SECRET_BYTES);
	else if (length == 0)
		rc = err_set(e, -EINVAL, "PHUB_SECRET_FILE '%s' is empty", path);
	else
		s->secret = strndup(buf, length);
	explicit_bzero(buf, sizeof(buf));
	if (rc < 0)
		return rc;
	return s->secret ? 0 : err_set(e, -ENOMEM, "no memory for the secret");
}

static int settings_copy(char **out, const char *text, struct err *e)
{
	if (!text || !*text)
		return 0;
	*out = strdup(text);
	return *out ? 0 : err_set(e, -ENOMEM, "no memory for the options");
}

static int settings_take_secret(struct settings *s, const struct phub_options *o, struct err *e)
{
	const char *text = o->secret ? o->secret : getenv("PHUB_SECRET");
	const char *path = getenv("PHUB_SECRET_FILE");

	if (text && strlen(text) > SETTINGS_SECRET_BYTES)
		return err_set(e, -EINVAL, "job %s: a secret has at most %d bytes", s->url.job, SETTINGS_SECRET_BYTES);
	if ((!text || !*text) && path && *path)
		return settings_read_secret_file(s, path, e);
	return settings_copy(&s->secret, text, e);
}

/* ---- TLS ---- */

/* An option, else the environment's; NULL when both are empty. */
static const char *settings_text(const char *option, const char *variable)
{
	const char *text = option ? option : getenv(variable);

	return text && *text ? text : NULL;
}

/* Who names something to know the box by wants TLS, whatever the URL says: a forgotten letter must not undo it. */
static int settings_take_tls(struct settings *s, const struct phub_options *o, struct err *e)
{
	const char *ca = settings_text(o->tls_ca, "PHUB_TLS_CA");
	const char *pin = settings_text(o->tls_pin, "PHUB_TLS_PIN");

	int rc = settings_copy(&s->tls_ca, ca, e);

	if (rc == 0)
		rc = settings_copy(&s->tls_pin, pin, e);
	return rc == 0 && (ca || pin || s->url.tls) ? stream_tls_worker(ca, pin, &s->tls, e) : rc;
}

/* ---- what the box does ---- */

int settings_check_hyper(unsigned group, const struct phub_hyper *h, struct err *e)
{
	const struct {
		const char *name;
		double value, below; /* 0 <= value, and value < below when that is not 0 */
	} fields[] = {
		{"lr", h->lr, 0},
		{"momentum", h->momentum, 0},
		{"weight_decay", h->weight_decay, 0},
		{"beta1", h->beta1, 1},
		{"beta2", h->beta2, 1},
		{"eps", h->eps, 0},
		{"lr_decay", h->lr_decay, 0},
		{"initial_accumulator_value", h->initial_accumulator_value, 0},
	};

	if (!isfinite(h->dampening))
		return err_set(e, -EINVAL, "group %u: dampening is not a finite number", group);
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (!isfinite(fields[i].value) || fields[i].value < 0 ||
			(fields[i].below > 0 && fields[i].value >= fields[i].below))
			return err_set(e, -EINVAL, "group %u: %s is %g; it must be 0 or more%s", group, fields[i].name,
				fields[i].value, fields[i].below > 0 ? " and less than 1" : "");
	}
	return 0;
}

static int settings_take_groups(struct settings *s, const struct phub_options *o, struct err *e)
{
	unsigned count = o->groups ? o->group_count : 1;

	if (count < 1 || count > SETTINGS_GROUPS_MAX || (!o->groups && o->group_count > 1))
		return err_set(e, -EINVAL, "job %s: %u parameter groups%s; allowed are 1 to %u", s->url.job,
			o->group_count, o->groups ? "" : " without their hyper-parameters", SETTINGS_GROUPS_MAX);
	s->groups = calloc(count, sizeof(*s->groups));
	s->first = calloc(count, sizeof(*s->first));
	s->table = calloc(count, sizeof(*s->table));
	if (!s->groups || !s->first || !s->table)
		return err_set(e, -ENOMEM, "no memory for %u parameter groups", count);
	s->group_count = count;
	for (unsigned i = 0; i < count; i++) {
		int rc;

		if (o->groups)
			s->groups[i] = o->groups[i];
		else
			phub_hyper_init(o->optimizer, &s->groups[i]);
		rc = settings_check_hyper(i, &s->groups[i], e);
		if (rc < 0)
			return rc;
	}
	memcpy(s->first, s->groups, count * sizeof(*s->first));
	return 0;
}

static int settings_take_policy(struct settings *s, const struct phub_options *o, struct err *e)
{
	const char *job = s->url.job;

	if ((unsigned)o->optimizer > PHUB_ADAMW)
		return err_set(
			e, -EINVAL, "job %s: optimizer %d is none of enum phub_optimizer", job, (int)o->optimizer);
	if ((unsigned)o->reduce > PHUB_MEAN || (unsigned)o->sync > PHUB_ASYNC || (unsigned)o->nan > PHUB_NAN_FAIL ||
		(unsigned)o->seal > PHUB_SEAL_NONE || (unsigned)o->lost > PHUB_LOST_WAIT)
		return err_set(e, -EINVAL,
			"job %s: reduce %d, sync %d, nan %d, lost %d or seal %d is not one of its enumeration", job,
			(int)o->reduce, (int)o->sync, (int)o->nan, (int)o->lost, (int)o->seal);
	if (o->sync != PHUB_BSP && o->optimizer == PHUB_NONE)
		return err_set(e, -EINVAL, "job %s: sync %s needs an optimizer; without one only bsp makes sense", job,
			o->sync == PHUB_SSP ? "ssp" : "async");
	if (o->chunk_bytes && (o->chunk_bytes < CHUNKING_CHUNK_BYTES_MIN || o->chunk_bytes > CHUNKING_CHUNK_BYTES_MAX ||
				      (o->chunk_bytes & (o->chunk_bytes - 1))))
		return err_set(e, -EINVAL, "job %s: chunks of %u bytes; allowed are powers of two from %u to %u", job,
			o->chunk_bytes, CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX);
	if (o->timeout_ms < 0)
		return err_set(e, -EINVAL, "job %s: timeout_ms is %d; it must be 0 or more", job, o->timeout_ms);
	s->optimizer = o->optimizer;
	s->reduce = o->reduce;
	s->sync = o->sync;
	s->nan = o->nan;
	s->lost = o->lost;
	s->quorum = o->quorum;
	s->wait_ms = o->wait_ms;
	s->resume_ms = o->resume_ms;
	s->move_ms = o->move_ms;
	s->seal = o->seal;
	s->staleness = o->staleness;
	s->chunk_bytes = o->chunk_bytes;
	s->reproducible = o->reproducible;
	s->no_thread = o->no_thread;
	s->timeout_ms = o->timeout_ms;
	return 0;
}

/* A number from the environment; left alone where it is not set. `what`: "no DSCP". */
static int settings_take_number(
	const char *name, const char *what, unsigned least, unsigned most, unsigned *out, struct err *e)
{
	const char *text = getenv(name);
	char *end;
	unsigned long value;

	if (!text || !*text)
		return 0;
	value = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || value < least || value > most)
		return err_set(e, -EINVAL, "%s='%.64s' is %s; allowed: %u to %u", name, text, what, least, most);
	*out = (unsigned)value;
	return 0;
}

/* The option, or PHUB_ENCRYPT. Keys follow from the secret: without one nothing would be hidden. */
static int settings_take_encrypt(struct settings *s, const struct phub_options *o, struct err *e)
{
	unsigned encrypt = o->encrypt;
	int rc = encrypt ? 0 : settings_take_number("PHUB_ENCRYPT", "no switch", 0, 1, &encrypt, e);

	if (rc < 0)
		return rc;
	s->encrypt = encrypt;
	if (encrypt && !s->secret)
		return err_set(e, -EINVAL,
			"job %s: encrypted data needs the job's secret, from which its keys follow: set PHUB_SECRET or "
			"PHUB_SECRET_FILE, and give the job that secret at the box",
			s->url.job);
	return 0;
}

/* ---- a box of this host's own ---- */

/* What a job that is summed at several boxes cannot have yet; NULL: nothing of that. */
static const char *settings_not_below(const struct settings *s)
{
	const char *t = s->transport;

	return s->url.other.host[0]  ? "a second box in the URL"
	       : s->here             ? "here (it has no part above the host's box)"
	       : s->sync != PHUB_BSP ? "sync ssp and async"
	       : s->quorum           ? "a quorum"
	       : s->resume_ms        ? "resume"
	       : s->encrypt          ? "encrypted data"
	       : s->interface        ? "an interface (the host's box goes up as the routes say)"
	       : t && strcmp(t, "shm") != 0 && strcmp(t, "tcp") != 0
		       ? "a transport other than shm and tcp (it is the way to the host's box)"
		       : NULL;
}

/* The URL's word, else PHUB_HOSTBOX. */
static int settings_take_hostbox(struct settings *s, struct err *e)
{
	const char *text = settings_text(NULL, "PHUB_HOSTBOX"), *not_below;
	bool none = text && strcmp(text, "none") == 0;

	if (text && !none && strcmp(text, "auto") != 0)
		return err_set(e, -EINVAL, "PHUB_HOSTBOX='%.64s'; allowed: auto, none", text);
	s->hostbox = s->url.hostbox == URL_HOSTBOX_UNSAID ? text && !none : s->url.hostbox == URL_HOSTBOX_AUTO;
	not_below = s->hostbox ? settings_not_below(s) : NULL;
	if (not_below)
		return err_set(e, -ENOTSUP,
			"job %s: hostbox=auto has a box of this host sum its workers, and jobs at several boxes do not "
			"go with %s yet; leave one of the two away",
			s->url.job, not_below);
	return 0;
}

int settings_init(struct settings *s, const char *url, const struct phub_options *options, struct err *e)
{
	struct phub_options o;
	int rc;

	memset(s, 0, sizeof(*s));
	phub_options_init(&o);
	if (options) {
		if (options->size < sizeof(size_t) || options->size > 4096)
			return err_set(e, -EINVAL, "the options were not filled by phub_options_init()");
		memcpy(&o, options, options->size < sizeof(o) ? options->size : sizeof(o));
	}
	rc = url_parse(url, &s->url, e);
	if (rc == 0)
		rc = settings_take_policy(s, &o, e);
	if (rc == 0)
		rc = settings_take_rank(s, &o, e);
	if (rc == 0)
		rc = settings_take_groups(s, &o, e);
	if (rc == 0)
		rc = settings_take_secret(s, &o, e);
	if (rc == 0)
		rc = settings_take_tls(s, &o, e);
	if (rc == 0)
		rc = settings_take_encrypt(s, &o, e);
	if (rc == 0 && o.transport && strcmp(o.transport, "auto") != 0)
		rc = settings_copy(&s->transport, o.transport, e);
	if (rc == 0)
		rc = settings_copy(&s->interface, o.interface, e);
	if (rc == 0)
		rc = settings_copy(&s->association, o.association, e);
	s->here = o.here;
	if (rc == 0)
		rc = settings_take_hostbox(s, e);
	if (rc == 0)
		rc = settings_take_number("PHUB_RDMA_DSCP", "no DSCP", 0, SETTINGS_DSCP_MAX, &s->rdma_dscp, e);
	if (rc == 0)
		rc = settings_take_number(
			"PHUB_DATAGRAM_MTU", "no MTU", SETTINGS_MTU_MIN, SETTINGS_MTU_MAX, &s->datagram_mtu, e);
	if (rc < 0)
		settings_fini(s);
	return rc;
}

void settings_fini(struct settings *s)
{
	if (s->secret)
		explicit_bzero(s->secret, strlen(s->secret));
	free(s->secret);
	free(s->transport);
	free(s->interface);
	free(s->association);
	stream_tls_close(s->tls);
	free(s->tls_ca);
	free(s->tls_pin);
	free(s->groups);
	free(s->first);
	free(s->table);
	memset(s, 0, sizeof(*s));
}
