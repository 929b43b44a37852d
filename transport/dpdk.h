/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between a program and libphub-dpdk.so: DPDK's libraries are many, and who does not ask for transport dpdk does not
 * need them. dpdk_spec.c, dpdk_load.c and dpdk_setup.c are the program's; dpdk.c, dpdk_rx.c, dpdk_init.c, dpdk_arp.c,
 * dpdk_memory.c, dpdk_steer.c and dpdk_eal.c are the plugin, which moves packets and nothing else: it knows a `struct
 * reliable_message` only to hold it and to let it go. Control thread.
 */
#ifndef PHUB_TRANSPORT_DPDK_H
#define PHUB_TRANSPORT_DPDK_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/log.h"
#include "transport/datagram.h"

enum {
	DPDK_ABI = 3, /* of what follows: a plugin of another build is refused */
	DPDK_DEVICE_MAX = 256,
	DPDK_QUEUES_MAX = 64,
	DPDK_PORTS_MAX = 16,      /* of one transport */
	DPDK_PORT_DEFAULT = 7150, /* UDP, of the first queue */
	DPDK_DATAGRAMS = 32,      /* of one burst, either way */
};

/* A port as the configuration names it: DEVICE[@ADDRESS/PREFIX][,gw=ADDRESS][,mac=MAC][,mtu=BYTES][,port=UDP]. */
struct dpdk_spec {
	char device[DPDK_DEVICE_MAX]; /* of EAL: "0000:3b:00.0", "net_af_packet0,iface=veth0" */
	uint32_t ip;                  /* host byte order; 0: that of the kernel's interface */
	uint8_t prefix;
	uint32_t gateway; /* 0: none */
	uint8_t mac[6];   /* zero: the device's */
	uint16_t mtu;     /* 0: the device's */
	uint16_t port;    /* UDP, of the first queue; 0: not said */
};

/* Reads one port. 0, or -EINVAL with the reason in `e`. Any thread; pure. */
int dpdk_spec_parse(const char *text, struct dpdk_spec *out, struct err *e);
/* Reads all, with semicolons between them: how many there are in `out`; or -EINVAL. Any thread; pure. */
int dpdk_specs_parse(const char *text, struct dpdk_spec out[DPDK_PORTS_MAX], struct err *e);

enum { DPDK_LACKS_BYTES = 64 };

/*
 * The rights that devices of this kind need, and this process does not have: "CAP_NET_ADMIN, CAP_NET_RAW", or false,
 * when it lacks none that is known of. Any thread.
 */
bool dpdk_lacks(const char *device, char out[DPDK_LACKS_BYTES]);

/* Why a frame that came was no datagram of ours. */
enum dpdk_drop {
	DPDK_RUNT,       /* too short for what it says it is */
	DPDK_FOREIGN,    /* neither IPv4 nor ARP */
	DPDK_HEADER,     /* an IPv4 header that is wrong, or has options; or nobody can have sent it */
	DPDK_FRAGMENT,   /* a fragment of an IPv4 packet */
	DPDK_ELSEWHERE,  /* to another address, or MAC */
	DPDK_PROTOCOL,   /* neither UDP nor an echo request that is answered */
	DPDK_NO_QUEUE,   /* to a UDP port that no queue has */
	DPDK_DAMAGED,    /* its checksum is wrong, as the device or we found */
	DPDK_SCATTERED,  /* in several buffers that cannot be joined */
	DPDK_STEER_FULL, /* the core it was for takes too long */
	DPDK_DROPS,
};

struct dpdk_counters { /* of one queue; read by others with relaxed loads */
	uint64_t came, sent, sent_bytes;
	uint64_t polls, empty; /* calls of receive(), and those that found nothing */
	uint64_t dropped[DPDK_DROPS];
	uint64_t attached, copied; /* payloads that the device reads where they lie, or that were copied for it */
	uint64_t steered;          /* that another core's queue received, and handed over */
	uint64_t answered;         /* ARP and echo requests */
	uint64_t asked;            /* ARP requests of ours */
	uint64_t conflicts;        /* ARP frames that say our address is somebody else's */
	uint64_t unreachable;      /* not sent: nobody is known at that address */
	uint64_t lost;             /* taken, and not sent: the link was down, or there were no buffers */
	uint64_t full;             /* the device took less than it was given, */
	uint64_t busy;             /* or another core was just sending by the same queue of it */
};

/* The name of a reason, for counters and logs. */
const char *dpdk_drop_name(enum dpdk_drop why);

/* How datagrams find the core that owns their UDP port. */
enum dpdk_steering {
	DPDK_STEER_ONE,  /* there is one queue */
	DPDK_STEER_FLOW, /* the device does it: an rte_flow rule for each port */
	DPDK_STEER_SOFT, /* who received it hands it over */
};

/* What the plugin needs of the program that loaded it. */
struct dpdk_host {
	void (*log)(enum log_level level, const char *line);
	void (*hold)(struct reliable_message *m);
	void (*let)(struct reliable *r, struct reliable_message *m);
	const char *(*drop_name)(enum dpdk_drop why);
};

struct dpdk_nic_config {
	struct dpdk_spec spec;
	const struct dpdk_spec *all; /* that will be opened, this one among them: for EAL; NULL: this one */
	unsigned all_count;
	const char *eal;      /* more arguments for EAL, separated by blanks; or NULL */
	unsigned queues;      /* that will be opened, at most */
	const int *nodes;     /* [queues] NUMA nodes of those who will own them, or MEM_NODE_ANY; NULL: not known */
	uint16_t port_first;  /* UDP, of the first queue; 0: default */
	uint16_t port_last;   /* 0: any */
	uint16_t descriptors; /* of a queue and direction; 0: default */
	bool quiet;
};

struct dpdk_facts {
	char driver[32];
	enum dpdk_steering steering;
	unsigned rx_queues, tx_queues; /* of the device */
	bool attaches;                 /* payloads are read where they lie, */
	bool maps;                     /* if they lie in memory that was mapped */
	unsigned mapped;               /* regions, now */
	bool huge;                     /* EAL has huge pages */
	bool up;                       /* the link, now */
	uint16_t mtu;
	uint32_t mask;                   /* of its network, host byte order */
	bool gateway;                    /* there is a way out of it */
	struct datagram_address address; /* of the first queue */
};

struct dpdk_nic;

/* What libphub-dpdk.so exports as `phub_dpdk_plugin`. */
struct dpdk_plugin {
	unsigned abi;
	/* EAL, once per process, and one port of it. Blocks for as long as EAL takes, once. */
	int (*open)(const struct dpdk_host *host, const struct dpdk_nic_config *config, struct dpdk_nic **out,
		struct err *e);
	void (*facts)(struct dpdk_nic *nic, struct dpdk_facts *out);
	/* As in datagram_class; `owner` is the nic. */
	int (*port_open)(void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out,
		struct err *e);
	int (*route)(
		void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max);
	bool (*memory_use)(void *owner, void *base, size_t bytes, bool huge);
	void (*memory_end)(void *owner, void *base);
	/* All ports were closed. */
	void (*close)(void *owner);
	const struct dpdk_counters *(*counters)(const struct datagram_port *p);
};

/*
 * Loads the plugin, once per process: from the folder of the program or library that this code is in, from ../lib of
 * it, or where the loader looks. 0; -ENOENT: this build has no DPDK; -ELIBACC: DPDK's libraries are not installed;
 * -ELIBBAD: it is of another build.
 */
int dpdk_load(const struct dpdk_plugin **out, struct err *e);

/* Could these ports be asked for? Reads them and loads the plugin; touches no device. As either of these. */
int dpdk_check(const char *ports, struct err *e);

#endif
