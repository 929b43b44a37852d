/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operator can set: one table of options (config_options.c) drives the file, the -o overrides, --dump-config
 * and the texts that say what is allowed. Control thread, at start; may block on files. A config is constant
 * afterwards.
 */
#ifndef PHUB_CONTROL_CONFIG_H
#define PHUB_CONTROL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/base/err.h"
#include "phub/spec.h"
#include "phub/store.h"
#include "topology/racks.h"

#define CONFIG_LISTEN_MAX        8u
#define CONFIG_HOST_BYTES        256u
#define CONFIG_TRANSPORTS_MAX    8u   /* as many queues as a core can own */
#define CONFIG_CORES_MAX         256u /* Start names a core in one byte */
#define CONFIG_JOBS_MAX          4096u
#define CONFIG_OPTIONS_MAX       128u
#define CONFIG_FILE_BYTES_MAX    (1u << 20)
#define CONFIG_SECRET_BYTES_MAX  4096u
#define CONFIG_SECRET_BYTES_GOOD 16u /* fewer are warned of where others may overhear */
#define CONFIG_PATH_BYTES        4096u
#define CONFIG_NAME_BYTES        64u /* of boxes and roots, in etcd */
#define CONFIG_UPLINKS_MAX       8u

enum config_pushes { CONFIG_PUSHES_SLOTS, CONFIG_PUSHES_FIXED };
enum config_uplink {
	CONFIG_UPLINK_AUTO,
	CONFIG_UPLINK_DPDK,
	CONFIG_UPLINK_SHM,
	CONFIG_UPLINK_TCP,
	CONFIG_UPLINK_UDP,
	CONFIG_UPLINK_VERBS
};
enum config_poll { CONFIG_POLL_ADAPTIVE, CONFIG_POLL_BUSY };
enum config_create { CONFIG_CREATE_SAME_UID, CONFIG_CREATE_SECRET, CONFIG_CREATE_NEVER };
enum config_seal { CONFIG_SEAL_GMAC, CONFIG_SEAL_CRC, CONFIG_SEAL_NONE };
enum config_encryption { CONFIG_ENCRYPTION_OFF, CONFIG_ENCRYPTION_ALLOW, CONFIG_ENCRYPTION_REQUIRE };
enum config_tls { CONFIG_TLS_OFF, CONFIG_TLS_ALLOW, CONFIG_TLS_REQUIRE };
enum config_log { CONFIG_LOG_ERROR, CONFIG_LOG_WARN, CONFIG_LOG_INFO, CONFIG_LOG_DEBUG };

/* What boxes below this one, and this one, lift their sums to (topology/ways.h). */
enum config_hierarchy {
	CONFIG_HIERARCHY_TREE,
	CONFIG_HIERARCHY_SHARDED,
	CONFIG_HIERARCHY_CHAIN,
	CONFIG_HIERARCHY_AUTO, /* as the cost model says, when the job starts */
};
/* Of one job: the box's, or 1 + what it is. */
enum { CONFIG_HIERARCHY_BOX = 0 };

struct config_listen {
	char host[CONFIG_HOST_BYTES]; /* without brackets */
	uint16_t port;                /* 0: a free one */
};

/* Another box. */
struct config_box {
	struct config_listen at;
	bool tls; /* by TLS */
};

/* Where a secret comes from, and, after config_finish(), what it is. */
struct config_secret {
	char file[CONFIG_PATH_BYTES]; /* "" when it does not come from a file */
	char env[64];                 /* "" when it does not come from the environment */
	uint8_t *bytes;               /* NULL when there is none */
	size_t length;
};

/* A job that the operator named. */
struct config_job {
	char name[SPEC_NAME_BYTES];
	struct config_secret secret;
	uint32_t world;      /* 0: as the workers say */
	uint64_t memory_max; /* 0: the box's */
	uint32_t weight;     /* its share of a core beside other jobs */
	uint32_t cores;      /* its chunks are on so many, at most; 0: all */
	uint64_t bandwidth;  /* bytes a second that its workers push, at most; 0: no bound */
	unsigned hierarchy;  /* CONFIG_HIERARCHY_BOX, or 1 + an enum config_hierarchy */
	unsigned line;       /* in the file */
};

struct config;

/* May jobs at several boxes be sharded or chains, of which this is the top box? */
bool config_exchanges(const struct config *config);
/* The transports that boxes of a tree speak with each other, the best first. How many of `names`. */
unsigned config_ways_up(const struct config *config, const char **names, unsigned max);
/* The transports that its cores reach other boxes by, the best first; a standby takes tcp. How many of `names`; 0: they
 * reach none. */
unsigned config_uplink_names(const struct config *config, const char **names, unsigned max);
/* Is it among its transports, or those? */
bool config_uses(const struct config *config, const char *transport);

struct config {
	char file[CONFIG_PATH_BYTES];       /* the last that was read; "": none */
	unsigned lines[CONFIG_OPTIONS_MAX]; /* where it sets each option; 0: it does not, or that was overridden */
	struct config_listen listen[CONFIG_LISTEN_MAX];
	unsigned listen_count;
	char interface[16]; /* "": any */
	char rdma[160];     /* "": all */
	enum config_pushes rdma_pushes;
	uint64_t rdma_dscp;
	uint64_t datagram_mtu;
	char dpdk_ports[2048];          /* "": none */
	char dpdk_eal[256];             /* "": nothing more */
	uint64_t rdma_slots_memory;     /* 0: chosen at start */
	uint16_t port_first, port_last; /* of data connections; 0, 0: any */
	char transports[CONFIG_TRANSPORTS_MAX][16];
	unsigned transport_count;
	unsigned core_count;        /* 0: chosen at start */
	int cpus[CONFIG_CORES_MAX]; /* [core_count] when cores_listed */
	bool cores_listed;          /* the operator named the CPUs */
	enum config_poll poll;
	uint64_t spin_us;
	uint64_t memory_max; /* 0: chosen at start */
	uint64_t chunk_bytes;
	uint64_t window;
	uint64_t heartbeat_ms, warn_ms, lost_ms, wait_ms, handshake_ms, standby_keep_ms;
	uint64_t handshake_rate, handshake_rate_source;
	uint64_t sessions_max, jobs_max, keys_max;
	char checkpoint_targets[1024]; /* "": no checkpoints */
	uint64_t checkpoint_parity, checkpoint_every, checkpoint_keep, checkpoint_rate, checkpoint_overhead;
	char standby[320], standby_advertise[320]; /* "": none; as standby */
	struct config_listen standby_at;           /* after config_finish(): where it is, */
	bool standby_tls;                          /* and by TLS; */
	char standby_told[320];                    /* and what workers are told: "" or host:port */
	char root[CONFIG_NAME_BYTES];              /* that it stands for; "": none */
	char uplink[640];                          /* "": there is no box above */
	char uplink_name[CONFIG_NAME_BYTES];       /* after config_finish(): of a box that etcd knows; "": none, but */
	struct config_box uplinks[CONFIG_UPLINKS_MAX]; /* where it may be, first of all the first, */
	unsigned uplink_count;                         /* so many; 0 where etcd knows */
	enum dtype uplink_type;                        /* of sums that go there */
	enum config_uplink uplink_transport;           /* and what they go by */
	enum config_hierarchy hierarchy;    /* of jobs whose top box this is, but where their entry has one */
	char advertise[320];                /* "": where others come from and listen says */
	struct config_listen advertise_at;  /* after config_finish() */
	char racks_file[CONFIG_PATH_BYTES]; /* "": none */
	char box[RACKS_NAME_BYTES];         /* "": the one whose address is this box's */
	struct racks racks;                 /* after config_finish(): what the file says; no boxes: none */
	unsigned racks_box;                 /* which of them this is */
	bool racks_uplink;                  /* uplink is the first of them, for nobody named another */
	char etcd[1024];                    /* "": none */
	char etcd_prefix[128];
	uint64_t etcd_ttl_ms;
	struct config_secret etcd_secret;
	char etcd_ca[CONFIG_PATH_BYTES];
	char rack[RACKS_NAME_BYTES];            /* "": as the rack file says, or not told */
	uint64_t hostbox_fd, hostbox_linger_ms; /* hostbox.h; 0: it is nobody's but the operator's */
	char sibling[CONFIG_HOST_BYTES + 8];    /* "host:port" where its workers go when this box dies; "": nowhere */
	char congestion[16];
	enum config_seal datagram_seal; /* the least that a job may have */
	enum config_encryption data_encryption;
	bool huge_pages;
	enum store_results stores;
	enum config_log log_level;
	enum config_create create;
	struct config_secret create_secret;
	struct config_secret admin_secret;
	enum config_tls tls;
	char tls_cert[CONFIG_PATH_BYTES], tls_key[CONFIG_PATH_BYTES];
	char user[33], group[33]; /* "": as it was started */
	struct config_job *jobs;
	unsigned job_count;
};

/* Every option at its default. No memory is taken. */
void config_init(struct config *config);
/* Frees the list of jobs and the racks, and wipes the secrets. */
void config_fini(struct config *config);

/* Reads a file over what is set already. 0, or a negative errno with "FILE:LINE: what is wrong; what is allowed" in
 * `e`. */
int config_load(struct config *config, const char *path, struct err *e);

/* The same from memory: any bytes. `name` stands in messages. Reads no other file; nothing but memory is taken. */
int config_parse(struct config *config, const void *text, size_t bytes, const char *name, struct err *e);

/* One option as "key=value", for -o. 0, or -EINVAL with what is allowed. Lists are comma-separated; not for `jobs`. */
int config_set(struct config *config, const char *assignment, struct err *e);

/*
 * Once all is set: reads the secrets, fills in what is chosen at start (memory_max, core_count), and checks what no
 * option can check alone (a public address needs secrets, times are in order, memory_max is there). 0, or a negative
 * errno with what to do in `e`, behind "FILE:LINE: " when it is about an option that a file has set.
 */
int config_finish(struct config *config, struct err *e);

/* "box r1b of rack r1 in FILE; the box above is 10.0.0.1:7077", or "" without a rack file. */
void config_describe_racks(const struct config *config, char *out, size_t bytes);

/* Is that where this box says that it is? */
bool config_is_here(const struct config *config, const char *host, uint16_t port);

/* Every option with help and value, as YAML that config_load() takes. */
void config_dump(const struct config *config, FILE *out);

/*
 * What the operator listed for the job of this name, or NULL: its own entry, else that of the job that it is beside: v
 * is for v.used as well, and where v and v.x are listed v.x is for v.x.used.
 */
const struct config_job *config_find_job(const struct config *config, const char *name);

/* May these bytes name a job? 1 to 63 printable ASCII characters, no space, no slash. */
bool config_job_name_valid(const char *name);

#endif
