/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libphub: a worker's end of a PHub box, in one header.
 *
 * A worker connects to a job on a box, names its keys (tensors), starts together with the other
 * workers, and from then on exchanges keys in rounds: it pushes a gradient and pulls the result, which
 * is the sum or mean over all workers, or the new weights when the job has an optimizer.
 *
 *      phub_connect -> phub_key ... -> phub_start -> { phub_push_pull ... phub_wait } -> phub_leave -> phub_close
 *
 * Results and errors. Calls return 0 (or an index) or a negative errno; phub_error() is the text of this
 * thread's last failure: what failed, for which job, rank and key, and what to do. Nothing is ever
 * printed. No call blocks beyond its timeout (by more than 20 ms, in which the box may say who is missing).
 * Timeouts are in milliseconds: 0 asks and returns at once, PHUB_TIMEOUT_DEFAULT takes the one in the options.
 *
 * Threads. Every call may come from any thread at any time, also at once, except phub_close(), after
 * which the handle is gone. A progress thread of the library works between calls (see phub_options.no_thread).
 *
 * GPUs. Where the process has loaded CUDA, memory to exchange may be a GPU's (managed and pinned memory is the host's).
 * The GPU copies it from and to memory of the library, which is pinned for that, on streams of the library's own: what
 * the caller's streams still do with src or dst must be done before the call that begins the round; once its wait has
 * returned any stream may use dst. Contexts that it meets outlive the key table. phub_mem_register() can spare the
 * copy. This library neither links nor loads nor initializes CUDA; it looks for it when a round begins and none is in
 * flight, so a process that loads CUDA later than phub_start() waits for its rounds before it hands over the first such
 * pointer. -EIO tells what CUDA said.
 *
 * Fork. A child that was forked after phub_connect() holds no part of the connection: its calls
 * return -EPERM, and it may phub_close() the handle or just exit.
 *
 * Errors that any call may return: -EINVAL (an argument), -EPERM (forked child), -ENOMEM, and once the session
 * has ended what ended it: -ESHUTDOWN (left, or the box went down), -ECANCELED (its operator ended the job),
 * -EOWNERDEAD (another worker was lost), -ECONNRESET (the box is gone), -EHOSTDOWN (it is silent), -EHOSTUNREACH (its
 * datagrams do not come through), -EPROTO, -EDOM (NaN), ... A session that ended stays ended. When the box has said
 * that it ends the job, phub_push() and the like may refuse with its reason while results of rounds that it completed
 * still land: memory is the caller's again once phub_wait() has returned an error or phub_leave() returned.
 */
#ifndef PHUB_H
#define PHUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHUB_API __attribute__((visibility("default")))

#define PHUB_VERSION          "0.1.0"
#define PHUB_PORT             7077
#define PHUB_TIMEOUT_DEFAULT  (-1)
#define PHUB_FROM_ENVIRONMENT (-1)

typedef struct phub phub_t;

/* Element types. Sums and weights are fp32 in the box whatever the type on the wire. */
enum phub_dtype { PHUB_F32 = 0, PHUB_F16 = 1, PHUB_BF16 = 2 };

/* What the box does with a sum. PHUB_NONE makes it an all-reduce; the others follow torch.optim. */
enum phub_optimizer {
	PHUB_NONE = 0,
	PHUB_SGD = 1,
	PHUB_MOMENTUM = 2,
	PHUB_NESTEROV = 3,
	PHUB_ADAGRAD = 4,
	PHUB_ADAM = 5,
	PHUB_ADAMW = 6,
};

enum phub_reduce { PHUB_SUM = 0, PHUB_MEAN = 1 };

/*
 * When a round is answered. BSP: when every worker has pushed it. ASYNC: each push is one optimizer
 * step, answered at once. SSP: the same, but round r is answered when every worker has pushed round
 * r - staleness. SSP and ASYNC need an optimizer.
 */
enum phub_sync { PHUB_BSP = 0, PHUB_SSP = 1, PHUB_ASYNC = 2 };

/* NaN and infinity in a gradient: sum them, count them as zero, or end the job with rank and key named. */
enum phub_nan { PHUB_NAN_PASS = 0, PHUB_NAN_ZERO = 1, PHUB_NAN_FAIL = 2 };

/*
 * How datagrams are sealed, where the transport sends any: so that nobody without the job's session can make one; so
 * that damage is seen; or not at all. CRC and NONE are for racks where everybody is trusted, and the box must allow
 * them (its option datagram_seal).
 */
enum phub_seal { PHUB_SEAL_GMAC = 0, PHUB_SEAL_CRC = 1, PHUB_SEAL_NONE = 2 };

/*
 * When a worker is lost (its process or host dies, its network breaks): FAIL ends the job for all. SHRINK goes on with
 * those left: what they had pushed and was not answered is pushed again by the library, and a mean divides by their
 * number. WAIT does the same for rounds that had begun, and holds the next ones until another worker has taken the
 * place of the lost one (options.wait_ms). In a job that shrinks or waits a new worker may connect with a rank that is
 * free: phub_start() lets it in between two rounds, phub_broadcast() then brings it the weights of the box, and
 * phub_round() says which round is next.
 * With SSP and ASYNC what the lost one has pushed stays in the weights. Another in its place begins with the round
 * after the last that all have pushed, the lost one among them where the job WAITs. Until it comes SSP answers nobody
 * beyond that last round plus the staleness then, and goes on without it where the job SHRINKs; ASYNC waits for nobody.
 */
enum phub_lost { PHUB_LOST_FAIL = 0, PHUB_LOST_SHRINK = 1, PHUB_LOST_WAIT = 2 };

/* Hyper-parameters of one parameter group, torch.optim's names; an optimizer ignores what it does not have. */
struct phub_hyper {
	double lr;
	double momentum;
	double dampening;
	double weight_decay;
	double beta1, beta2;
	double eps;
	double lr_decay;
	double initial_accumulator_value;
};

/* Fill with phub_options_init(), then change what differs. All workers of a job must say the same but for
 * rank, secret, transport, timeout_ms, interface, no_thread, tls_ca, tls_pin and move_ms. */
struct phub_options {
	size_t size;        /* set by phub_options_init(): lets the struct grow */
	int rank, world;    /* PHUB_FROM_ENVIRONMENT: as phub_launched() says */
	const char *secret; /* the job's secret, or NULL: PHUB_SECRET or PHUB_SECRET_FILE (chmod 600), else none */
	enum phub_optimizer optimizer;   /* PHUB_NONE */
	enum phub_reduce reduce;         /* PHUB_SUM */
	enum phub_sync sync;             /* PHUB_BSP */
	unsigned staleness;              /* rounds, for SSP */
	bool reproducible;               /* sums in rank order: two runs give the same bits */
	enum phub_nan nan;               /* PHUB_NAN_PASS */
	unsigned chunk_bytes;            /* 0: the box's default, 32 KiB */
	const struct phub_hyper *groups; /* [group_count]; NULL: one group of the optimizer's defaults */
	unsigned group_count;
	/* NULL or "auto": shared memory on the box's host (for its user and root), RDMA in a network of its ports, else
	 * tcp. BSP with a box that has a standby, unless move_ms is 0: shared memory last, for whoever has asked for
	 * "shm" cannot go on there, and neither can the job. Or "shm", "verbs" (PHUB_RDMA names ports, as
	 * DEVICE[:PORT][@GID],...), "tcp", "udp", "dpdk" (PHUB_DPDK names the port).
	 */
	const char *transport;
	const char *interface; /* network interface to leave by, or NULL */
	int timeout_ms;        /* PHUB_TIMEOUT_DEFAULT stands for this; 30,000 */
	bool no_thread;        /* no progress thread: the caller drives phub_progress() at least every second */
	enum phub_seal seal;   /* PHUB_SEAL_GMAC */
	enum phub_lost lost;   /* PHUB_LOST_FAIL */
	unsigned wait_ms;      /* for another worker with LOST_WAIT; 0: what the box says, 5 minutes by default */
	/* BSP with an optimizer: a round closes when so many workers have pushed it; what comes later is dropped, and
	 * its worker gets the newest weights. 0: all must. */
	unsigned quorum;
	/* Not 0: when the box is lost, or ends the job because a worker was, the library connects again by itself for
	 * so long, and calls return -ESTALE until phub_resume(); before the first phub_start() none does, for nothing
	 * is lost then. A box may name a sibling, which is tried as well. 0: the session ends. */
	unsigned resume_ms;
	/* TLS 1.3 for the control session, which then never is plain: a PEM file with the authority of the box's
	 * certificate, which bears the url's host; and/or the certificate's SHA-256. NULL: PHUB_TLS_CA, PHUB_TLS_PIN.
	 */
	const char *tls_ca, *tls_pin;
	/*
	 * Gradients and results are encrypted (AES-256-GCM) wherever they leave the host; over shared memory they do
	 * not. Needs a secret. false: as PHUB_ENCRYPT says (1 or 0), else they are not.
	 */
	bool encrypt;
	/* When a box is lost that has a standby, all workers go on there, with the rounds that they are in: nothing is
	 * seen of it but that a wait takes longer. For so long the library tries that; 0: never. 45,000: longer than
	 * the standby waits for all of them (30 s, or 3 times its lost_ms), as it knows who has not come. */
	unsigned move_ms;
	/*
	 * In which order a reproducible job's sums are made: a list of all ranks, in which lists may stand, up to 8 in
	 * each other: "[[0-3],[4-7]]" adds ranks 0 to 3, then 4 to 7, then the two sums. NULL: in the order of ranks.
	 * Boxes that sum as a tree have such an order by nature; one box that is given it makes the same bits. There it
	 * cannot be chosen: `phub jobs` tells it.
	 */
	const char *association;
	/*
	 * The job is its box's alone: where that box has another above it (its option `uplink`), that one has no part
	 * in it, all ranks of the world are at this one, and nothing of the job leaves the rack. So jobs of one name at
	 * two such boxes have nothing to do with each other. false: its world is counted over all boxes.
	 */
	bool here;
};

PHUB_API void phub_options_init(struct phub_options *options);

/* torch.optim's defaults for an optimizer (lr 0.001, momentum 0.9 where one is needed). */
PHUB_API void phub_hyper_init(enum phub_optimizer optimizer, struct phub_hyper *hyper);

/* The text of this thread's last failed call; "" if none failed. Valid until this thread's next call. */
PHUB_API const char *phub_error(void);

/*
 * Rank and world as launchers set them: by the first pair of environment variables of which both are there, else 0
 * of 1. In this order, so that what was started inside of another launcher counts (torchrun under srun):
 *
 *      RANK, WORLD_SIZE                             torchrun, PyTorchJob
 *      JOB_COMPLETION_INDEX, WORLD_SIZE             an indexed Job of Kubernetes, whose manifest sets WORLD_SIZE
 *      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   Open MPI's mpirun
 *      PMI_RANK, PMI_SIZE                           MPICH's and Intel's mpirun, srun --mpi=pmi2
 *      SLURM_PROCID, SLURM_NTASKS                   srun
 *
 * -EINVAL names a variable that is no number, or that is there without the other of its pair and with no whole pair.
 */
PHUB_API int phub_launched(int *rank, int *world);

/*
 * Joins the job that `url` names: phub://host[:port]/job, host a name, an IPv4 or a [bracketed] IPv6 address;
 * phubs:// is TLS, and needs options->tls_ca or tls_pin. Of two boxes, phub://a[:port],b[:port]/job, b is tried when a
 * could not be reached for two seconds, and knows the job; then a again, in turns. A box
 * that is not up yet is tried again until options->timeout_ms has passed, and so is a name whose server does not
 * answer; a name of which it is answered that there is none is an error at once. `options` may be NULL.
 *
 * phub://host/job?hostbox=auto, or PHUB_HOSTBOX=auto (which ?hostbox=none overrides): the workers of this host are
 * summed over shared memory by a box of their own, which sends one stream up to the box in the URL; that one has to be
 * there by the end of phub_start(). The first worker on the host starts it (a phubd: PHUB_PHUBD, or beside this library
 * or the program, or in PATH; on PHUB_HOSTBOX_CORES cores, 1), the others find it, and it ends two seconds after the
 * last of them has closed or died. Such a job is one at several boxes: BSP, and no quorum, resume_ms,
 * encryption, interface, or transport but shm and tcp (-ENOTSUP); checkpoints are those of the box in the URL.
 * Workers with different PHUB_HOSTBOX_NAME have different such boxes.
 *
 * phub+etcd://host[:port][,...]/job (phubs+etcd://: the box by TLS) asks etcd for the boxes that are announced there
 * (phubd's option etcd), within the same time: it is one on this host, else of the rack that PHUB_RACK names, else one
 * that has the job, else the first by name. Without a host, phub+etcd:///job, etcd is where PHUB_ETCD says;
 * PHUB_ETCD_PREFIX, _SECRET, _SECRET_FILE and _CA are as in phub(1).
 *
 * -ECONNREFUSED/-ETIMEDOUT (no box), -EACCES (secret; the box is not the one that tls_ca or tls_pin names), -EPROTO (it
 * speaks no TLS), -ENOENT (no such host; no phubd to start; no such job and it may not be created), -EADDRINUSE (rank
 * taken), -ERANGE (rank outside world), -EPROTONOSUPPORT (version), -ENOTSUP (transport).
 */
PHUB_API int phub_connect(const char *url, const struct phub_options *options, phub_t **out);

PHUB_API int phub_rank(phub_t *p);
PHUB_API int phub_world(phub_t *p);
/* Workers that are in the job now; less than the world after losses. */
PHUB_API int phub_present(phub_t *p);
/* "shm", "tcp", ...; "" before phub_start(). */
PHUB_API const char *phub_transport(phub_t *p);

/* Flags of phub_key(). */
#define PHUB_KEY_ALONE  1u /* never in one chunk with other keys: may be exchanged without them */
/*
 * Many elements of its gradients are zero, and these need not travel: a chunk goes as the elements that are not zero
 * and a bitmap of them, or the gaps between them, each way for itself where that is shorter than the chunk as it is.
 * Nothing is lost: -0, NaN and infinity are elements like others, and sums are the same bits, but that one of -0 alone
 * is 0. src and dst stay arrays of all elements. Never in one chunk with keys that are not sparse.
 *
 * Over shared memory nothing is coded, as nothing travels; all else carries it: tcp, udp, dpdk, verbs (there a sparse
 * key's memory of a GPU goes through the host's), to a box and between boxes. What is broadcast goes to the box as it
 * is. Results are coded alike: sums, and with BSP the weights, should most of them be zero; those of SSP, ASYNC and a
 * quorum are not. phub_stats counts the bytes that did travel. Coding a chunk reads it twice: keys without many
 * zeros do not want this.
 */
#define PHUB_KEY_SPARSE 2u

/*
 * Names the next key: `elements` (> 0) of `dtype` in parameter group `group`. All workers name the same keys in the
 * same order. Returns its index: 0, 1, ... Small consecutive keys of one type and group share a chunk, which is
 * sent when the last of them has been pushed; a key that is sometimes exchanged without its neighbours wants
 * PHUB_KEY_ALONE. No two keys of a table have the same name. -EINVAL names the key; -EBUSY after phub_start().
 */
PHUB_API int phub_key(
	phub_t *p, const char *name, enum phub_dtype dtype, uint64_t elements, unsigned group, unsigned flags);

/*
 * Collective: hands the key table to the box and waits for the other workers' equal tables. -EBADMSG names the
 * first key (or option) that differs and the ranks; -ETIMEDOUT names the ranks that have not come (call again to go
 * on waiting); -ENOMEM: the box's limit; -ENOTSUP: no transport in common; -EBUSY: started already.
 */
PHUB_API int phub_start(phub_t *p, int timeout_ms);

/*
 * After -ESTALE (options.resume_ms): waits until the box is there again and the job runs, from its last checkpoint if
 * it has one. What was in flight is given up; memory is the caller's since the -ESTALE, and phub_alloc()'s, once this
 * returns 0, is gone: it is to be asked for again. Then phub_broadcast() brings each key's weights, as at the start
 * (rank 0's, where the box has none), and phub_round() says which round is next. Hyper-parameters are those of
 * phub_connect() again: phub_set_hyper() as that round wants it. The job runs when all ranks are there again; one that
 * SHRINKs goes on without those that have not come when the box has waited its lost_ms for them. -ETIMEDOUT: not yet,
 * call again; 0 at once when nothing was lost.
 */
PHUB_API int phub_resume(phub_t *p, int timeout_ms);

/*
 * Forgets all keys (none may be in flight: -EBUSY), so that phub_key() and phub_start() can make the next table; every
 * worker does so between the same rounds, and may take its time until its next phub_start(). Memory from phub_alloc()
 * is gone; weights and optimizer state of the box too.
 */
PHUB_API int phub_rekey(phub_t *p);

/*
 * Memory that is exchanged without a copy. *push: where this worker writes the gradient of `key`. *result: where it
 * reads results, valid from the end of a wait until the next push of the key. Both belong to the library until
 * phub_rekey() or phub_close(). After phub_start(), while no round of the key is in flight (-EBUSY). Pass *push as
 * src and NULL as dst.
 */
PHUB_API int phub_alloc(phub_t *p, int key, void **push, const void **result);

/*
 * Lets the transport read and write this memory in place: it must stay until phub_mem_unregister(). -ENOTSUP when
 * the transport cannot (shm: use phub_alloc()); exchanging from it then costs a copy, as with any other memory. Over
 * tcp no memory of the host needs it: all that is large is read and written in place. Memory of a GPU is read and
 * written in place by RDMA devices that take it as a dma-buf, from a GPU and driver that export one and order what NICs
 * write before work that is begun later; else -ENOTSUP, or, before phub_start(), 0 and a copy.
 */
PHUB_API int phub_mem_register(phub_t *p, void *addr, size_t bytes);
PHUB_API int phub_mem_unregister(phub_t *p, void *addr);

/*
 * Begins a round of `key`: pushes `src` (elements of the key's dtype) and has the result written to `dst` (may be
 * src, or overlap it; NULL: only to phub_alloc()'s *result). Lower priority goes first; front layers want the lowest.
 * Until phub_wait() has returned the caller leaves src and dst alone, whatever memory they are: a part of src may be
 * read, and a part of dst written, at any time until then. A push says that the worker no longer reads the
 * key's previous result. One round of a key at a time: -EBUSY while one is in flight. -ENODATA: a job with an
 * optimizer has no weights yet, call phub_broadcast() first.
 */
PHUB_API int phub_push_pull(phub_t *p, int key, const void *src, void *dst, int priority);

/* The two halves: phub_push() begins a round, phub_pull() waits for its result and copies it to dst (-ENODATA: no round
 * of the key has left a result). src is left alone until then. */
PHUB_API int phub_push(phub_t *p, int key, const void *src, int priority);
PHUB_API int phub_pull(phub_t *p, int key, void *dst, int timeout_ms);

/*
 * Begins a round in which rank `root`'s `buf` is given to all: written to every other worker's buf. With an
 * optimizer it sets the first weights and must come first, root 0, and once. Ends with phub_wait() like any other
 * round; root leaves buf alone until then, too: with a quorum it gets the weights after rounds that were closed
 * meanwhile.
 */
PHUB_API int phub_broadcast(phub_t *p, int key, void *buf, unsigned root);

/*
 * The round of `key` that this worker's next phub_push() begins, counted from 1: in a job that ran when it came, the
 * one that the others are at; with SSP and ASYNC the slowest of them. -EBUSY while one is in flight; -ENODATA before
 * the first weights.
 */
PHUB_API int64_t phub_round(phub_t *p, int key);

/*
 * Waits for the round of `key` in flight (PHUB_ALL: of every key). 0 at once when there is none. -ETIMEDOUT names
 * the key and the ranks it still waits for; the round stays in flight and may be waited for again. When it returns
 * another error the session has ended and nothing touches the caller's memory any more. A round that the box completed
 * before the session ended is delivered: it is waited for with 0, once, also after that; all that comes next is
 * refused.
 */
#define PHUB_ALL (-1)
PHUB_API int phub_wait(phub_t *p, int key, int timeout_ms);

/* 1 when `key` has no round in flight, 0 when it has, or a negative errno as phub_wait(). */
PHUB_API int phub_test(phub_t *p, int key);

/*
 * Hyper-parameters of `group` for all rounds that this worker begins from now on. In BSP all workers must set equal
 * values before the same round: else -EBADMSG ends the job and names the ranks.
 */
PHUB_API int phub_set_hyper(phub_t *p, unsigned group, const struct phub_hyper *hyper);

/* Waits until every worker of the job is here. -ETIMEDOUT names those who are not; the next call goes on waiting. */
PHUB_API int phub_barrier(phub_t *p, int timeout_ms);

/*
 * Leaves the job in good order: what is in flight is given up, and on return nothing touches the caller's memory
 * any more. It says that the training is finished: when all who were in the job to its end have said so, the next job
 * of its name does not go on from its checkpoints, but begins anew. While a box that was lost is awaited (resume_ms): 0
 * at once for a caller whose rounds and barriers were all over by then, and -ESTALE for others, who may phub_resume().
 * At that box the job is then one rank short: those who lack something get it only where lost=shrink goes on without,
 * or another comes in that rank's place.
 */
PHUB_API int phub_leave(phub_t *p, int timeout_ms);

/* As phub_leave(), of a training that stops before its end: the next job of its name goes on from the newest
 * checkpoint. */
PHUB_API int phub_leave_unfinished(phub_t *p, int timeout_ms);

/* Frees the handle, leaving abruptly if phub_leave() was not called. NULL is allowed. */
PHUB_API void phub_close(phub_t *p);

/*
 * For callers with an event loop (no_thread): does what can be done now and returns how long nothing else will be
 * due, in ms.
 */
PHUB_API int phub_progress(phub_t *p);
/* An fd that is readable when phub_progress() has work; the handle's own. */
PHUB_API int phub_fd(phub_t *p);

/* Counters since phub_connect(). Bytes are payload as it travelled (PHUB_KEY_SPARSE), without headers. */
struct phub_stats {
	size_t size; /* the caller's sizeof(struct phub_stats) */
	uint64_t pushed_bytes, pulled_bytes;
	/* By this library, in both directions, encryption counted; / pushed_bytes is the copies per gradient byte. */
	uint64_t copied_bytes;
	uint64_t pushes, results; /* chunks */
	uint64_t rounds;          /* of keys, finished */
	uint64_t resent;          /* pushes sent again: on a lossy transport, or by a connection made anew */
	uint64_t wait_ns;         /* time spent inside phub_wait(), phub_pull() and phub_barrier() */
	/* Over RDMA: work requests, the calls that handed them over, those that asked for a completion; and regions of
	 * memory that were registered. */
	uint64_t posts, doorbells, signalled, registrations;
	uint64_t reconnects; /* connections to the box that broke and were made anew */
	/* Over udp and dpdk: datagrams, those that were sent again, and what came and was dropped, repeats as well. */
	uint64_t datagrams, datagrams_resent, datagrams_dropped;
	uint64_t moves;                       /* to the standby of a box that was lost */
	uint64_t coded_pushes, coded_results; /* among pushes and results: PHUB_KEY_SPARSE */
};
PHUB_API int phub_stats(phub_t *p, struct phub_stats *stats);

#ifdef __cplusplus
}
#endif

/* Sites with skewed data, and the scout that says how often they talk. */
#include "phub_sites.h"

#endif
