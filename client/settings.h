/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one handle was asked to be: the URL and the options, checked, completed from the environment and owned, so
 * that nothing of the caller's is needed after phub_connect(). Written once, before the handle is anybody else's.
 */
#ifndef PHUB_CLIENT_SETTINGS_H
#define PHUB_CLIENT_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/phub.h"
#include "client/url.h"
#include "phub/base/err.h"
#include "transport/stream_tls.h"

#define SETTINGS_GROUPS_MAX   256u /* as in the box: SPEC_GROUPS_MAX */
#define SETTINGS_SECRET_BYTES 4096
#define SETTINGS_DSCP_MAX     63u
#define SETTINGS_MTU_MIN      1280u
#define SETTINGS_MTU_MAX      65535u
#define SETTINGS_SITES_BYTES  2048u

struct settings {
	struct url url;
	uint32_t rank, world;
	char *secret;              /* NULL: none */
	char *transport;           /* NULL: the best that reaches the box */
	char *interface;           /* NULL: any */
	struct stream_tls *tls;    /* NULL: the control session is plain */
	char *tls_ca, *tls_pin;    /* what it knows the box by; NULL: nothing */
	bool hostbox;              /* it goes by a box of this host (hostbox.h) */
	unsigned rdma_dscp;        /* PHUB_RDMA_DSCP */
	unsigned datagram_mtu;     /* PHUB_DATAGRAM_MTU; 0: not set */
	struct phub_hyper *groups; /* [group_count] as of now: phub_set_hyper() changes them... */
	struct phub_hyper *first;  /* ...as they were at the start... */
	struct phub_hyper *table;  /* ...and when the key table was handed over */
	unsigned group_count;
	enum phub_optimizer optimizer;
	enum phub_reduce reduce;
	enum phub_sync sync;
	enum phub_nan nan;
	enum phub_seal seal;
	unsigned staleness;
	enum phub_lost lost;
	unsigned quorum, wait_ms, resume_ms, move_ms;
	unsigned chunk_bytes; /* 0: the box's default */
	bool reproducible;
	char *association; /* NULL: none */
	bool encrypt;
	bool here;                        /* at one box: what is above that has no part in it */
	char sites[SETTINGS_SITES_BYTES]; /* what a site says of its options, as Job.sites; "": it is none */
	bool no_thread;
	int timeout_ms;
};

/* 0; -EINVAL or -ERANGE with the option at fault in `e`; -ENOMEM. `options` may be NULL. */
int settings_init(struct settings *s, const char *url, const struct phub_options *options, struct err *e);
void settings_fini(struct settings *s);

/* Are these hyper-parameters of any use? 0 or -EINVAL, naming group and field. */
int settings_check_hyper(unsigned group, const struct phub_hyper *hyper, struct err *e);

#endif
