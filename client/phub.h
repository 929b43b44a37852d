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
 * The GPU copies it from and to memory of the library, which is pinned for that, on a stream of the library's own: what
 * the caller's streams still do with src or dst must be done before the call that begins the round; once its wait has
 * returned any stream may use dst. phub_mem_register() can spare the copy. This library neither links nor loads nor
 * initializes CUDA; it looks for it when a round begins and none is in flight, so a process that loads CUDA later than
 * phub_start() waits for its rounds before it hands over the first such pointer. -EIO tells what CUDA said.
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
 * src; NULL: only to phub_alloc()'s *result). Lower priority goes first; front layers want the lowest. Until
 * phub_wait() has returned the caller leaves src and dst alone, whatever memory they are: a part of src may be
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

/*
 * ---- Sites with skewed data ----
 *
 * Sites (racks, hospitals, regions) train one model, each on data of its own that others never see, and pay for every
 * byte between them. A site takes its optimizer's steps by itself, and says to the others what its algorithm has it
 * say, how much of it theta decides; a scout may set theta by what talking costs, and what it costs not to (SkewScout:
 * Hsieh et al., ICML'20). Only models, gradients and aggregates leave a site.
 *
 *      phub_connect -> phub_site_open -> phub_site_tensor ... -> phub_site_start
 *           -> { phub_site_step } -> phub_leave -> phub_site_close -> phub_close
 *
 * The job is the site's alone: in BSP, without quorum, of sums and no optimizer (but see PHUB_OUTER_BOX); its keys are
 * made here, and no other call on the phub_t begins rounds. All sites say the same of the algorithm, of its tensors,
 * and of the scout (else phub_site_start() is -EBADMSG, and says of whom), and take the same number of steps. A site
 * belongs to one thread at a time; time limits, errors and phub_error() are as above.
 */
enum phub_site_algorithm {
	PHUB_SITE_BSP = 0,   /* the mean gradient, each step. Theta is 1 */
	PHUB_SITE_GAIA = 1,  /* what has changed a weight by more than its part theta (Hsieh et al., NSDI'17); >= 0 */
	PHUB_SITE_LOCAL = 2, /* the mean of weights, every theta steps (FedAvg, McMahan et al., 2017); whole, >= 1 */
	/* the part theta of each gradient that is largest (Lin et al., ICLR'18); 0 < theta <= 1. All sites have the
	 * same weights, whatever theta: so what models lose elsewhere says nothing of it */
	PHUB_SITE_DGC = 3,
};

/* Of PHUB_SITE_LOCAL: what becomes of the mean of what sites have moved, d: a step from the last common weights. */
enum phub_site_outer {
	PHUB_OUTER_AVERAGE = 0, /* d itself: FedAvg */
	/* The box's optimizer takes -d for a gradient: PHUB_NESTEROV with lr .7 and momentum .9 is DiLoCo (Douillard et
	 * al., 2023). The job has that optimizer, and PHUB_MEAN; sites count alike; all tensors are trained; no scout.
	 */
	PHUB_OUTER_BOX = 1,
	PHUB_OUTER_MOMENTUM = 2, /* FedAvgM (Hsu et al., 2019) */
	PHUB_OUTER_NESTEROV = 3, /* DiLoCo's step, at each site */
	PHUB_OUTER_ADAGRAD = 4,  /* FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR'21) */
	PHUB_OUTER_ADAM = 5,
	PHUB_OUTER_YOGI = 6,
};

enum phub_scout_policy {
	PHUB_SCOUT_FIXED = 0,  /* the theta to begin with: bit for bit as without a scout, and no model travels */
	PHUB_SCOUT_REPLAY = 1, /* a recorded schedule, a theta for each window */
	/* The next three go by what models lose elsewhere; over a grid of PHUB_SITE_DGC: -ENOTSUP */
	PHUB_SCOUT_HILL = 2,       /* hill climbing */
	PHUB_SCOUT_STOCHASTIC = 3, /* stochastic hill climbing */
	PHUB_SCOUT_ANNEALING = 4,  /* simulated annealing */
	/*
	 * scout+. No model travels: how far sites pull apart beyond the noise of their batches shows in the sums of
	 * exchanges, and says how loose theta may be. It begins at the tightest theta, whatever `first`; notices when
	 * data drift; is corrected by probes, of at most 2 % of the bytes and 3 % of the computing; and says when no
	 * theta will help. For BSP, GAIA and LOCAL. README has how it is made, and what it was measured to do.
	 */
	PHUB_SCOUT_PLUS = 5,
};

/* What a scout weighs talking in. */
enum phub_scout_unit {
	PHUB_SCOUT_BYTES = 0,
	/* latency an exchange, however little it says, and bytes / rate: so that Gaia's few bytes at each step are not
	 * as cheap as local SGD's, which are as many, and go at once */
	PHUB_SCOUT_SECONDS = 1,
	PHUB_SCOUT_MONEY = 2, /* bytes by their price */
};

/*
 * After a window at a theta its cost is lambda_loss max(0, AL - sigma) + lambda_bytes C / CM: AL is what accuracy
 * models lose on other sites' data, C what a site spends on exchanges a step, both means over sites, and CM what one
 * model in one exchange costs; in `unit`. With sites in sites C is the sum of what is spent on both classes of links.
 */
struct phub_scout_options {
	size_t size; /* set by phub_scout_options_init() */
	enum phub_scout_policy policy;
	const double *thetas; /* [theta_count] 1 to 64, rising, of DGC falling: the one that talks most first */
	unsigned theta_count;
	unsigned first;         /* index of the one to begin with */
	const double *schedule; /* [schedule_count] PHUB_SCOUT_REPLAY: 1 to 1024; the last one from its end on */
	unsigned schedule_count;
	uint32_t period;      /* steps in a window; 0: 500, of PHUB_SCOUT_PLUS 50 */
	uint64_t model_bytes; /* of one model; 0 in a site's options: its tensors' */
	double lambda_loss;   /* 50 */
	double lambda_bytes;  /* 1 */
	double sigma;         /* loss that is borne; 0.05 */
	double temperature;   /* of the last two policies; 1 */
	double cooling;       /* annealing: of a window; 0.9 */
	uint32_t memory;      /* windows that a cost is known for; 0: for ever */
	unsigned patience;    /* windows that say too little, until theta is the tightest; 3 */
	uint64_t seed;        /* all chance comes of it */
	/* PHUB_SCOUT_PLUS: */
	enum phub_site_algorithm algorithm; /* whose thetas they are; a site's options say it themselves; LOCAL */
	double gain; /* loss that talking more would have to save for theta to tighten, in the unit of reports; 0.02 */
	uint32_t tries; /* samples that evaluate() is asked for, of the first two trials at most 40; 200 */
	/* What a class of links costs: bytes a second, seconds an exchange, the price of 10^9 bytes; 0. SECONDS wants
	 * `rate`, MONEY `price`. The last three are of the links of sites within. PHUB_SCOUT_PLUS is no looser than
	 * where no theta is cheaper by 3 %, and weighs by `worth`. */
	enum phub_scout_unit unit; /* PHUB_SCOUT_BYTES */
	double rate, latency, price;
	double rate_within, latency_within, price_within;
	/* So many may lie: of AL's pairs, and of each loss that sites report, the part `trim` (rounded down to whole
	 * sites) that is most, and as much that is least, is left out of the mean. Honest skew at few sites is, too.
	 * From 0, the paper's mean, to below 0.5; 0 */
	double trim;
	double worth; /* PHUB_SCOUT_PLUS, not `gain`: of a unit of loss that a window saves, in `unit`; 0: by gain; 0 */
};

/*
 * What a site says of a window. Reports that cannot be true are not believed, and with fewer than half of them AL is
 * not known. `home` goes with `away` of the same model; or, where more is known so, with that of the guest that was
 * tried on the same data (phub_scout_host()), so that a site which cannot try models costs one of the two. Each counts
 * as one, of however few samples or classes: few samples show in decision.radius. decision.reason names whose reports
 * are amiss, and who of four or more stands out; a site without data is none of these, and not numbered among them.
 */
struct phub_scout_report {
	size_t size; /* sizeof(struct phub_scout_report) in each */
	/* Accuracies of its model, 0 .. 1: on its own data, and where it travelled to. NaN: not known, as where the
	 * model has weights that are no numbers. */
	double home, away;
	uint64_t samples; /* away; 0: not known, nor an accuracy of 0 at home */
	uint64_t bytes;   /* that it has said in the window */
	/* Losses are means over samples: */
	uint64_t trained; /* samples in the window; 0: it says nothing of `train` */
	double train;     /* of its own model on them, as it was trained */
	/* PHUB_SCOUT_PLUS, of the mean model, statistics too, as the window before this one began, and as it ended: */
	uint64_t tried; /* samples, as many always the same; 0: it says nothing of these: */
	double before, after;
	/* For costs: */
	uint64_t within;                    /* bytes, likewise, said by the site within */
	double exchanges, exchanges_within; /* in the window */
	bool alike; /* its model is bit for bit that of the site where it travelled to: nothing is left to chance */
};

enum phub_scout_action {
	PHUB_SCOUT_STAYS = 0,
	PHUB_SCOUT_TIGHTENS = 1,
	PHUB_SCOUT_LOOSENS = 2,
	PHUB_SCOUT_FALLS_BACK = 3, /* too few reports: the loosest theta that was safe, after `patience` the tightest */
	PHUB_SCOUT_CANNOT = 4,     /* no theta will mend what it sees: the reason says what might */
};

struct phub_scout_decision {
	size_t size;     /* the caller's sizeof */
	uint64_t window; /* that was observed, from 0 on */
	double theta;    /* from now on */
	unsigned index;  /* of it in the grid; PHUB_SCOUT_REPLAY: in the schedule */
	enum phub_scout_action action;
	unsigned believed; /* pairs of accuracies; PHUB_SCOUT_PLUS: reports */
	double loss;       /* AL; NaN: not known */
	double bytes;      /* that a site has said a step, the mean of sites */
	double cost;       /* of the theta that it was at; NaN likewise */
	char reason[240];
	double r; /* how sites have aligned: ||mean||^2 over the mean of ||d_k||^2 of what they said; NaN: not known */
	double pull;    /* PHUB_SCOUT_PLUS: how they pull apart beyond the noise of batches; NaN likewise */
	double gain;    /* PHUB_SCOUT_PLUS: loss that talking more would save, as far as probes say; NaN likewise */
	double radius;  /* half of the interval of 95 % of `gain`, or else of `loss`; infinite: not known */
	uint32_t tries; /* PHUB_SCOUT_PLUS: samples to try the mean model on now, at most; 0: none */
	double train;   /* loss of sites' own models on what they trained on, the mean of sites; NaN: not known */
	double spent;   /* C, in the scout's unit */
	double extra;   /* PHUB_SCOUT_PLUS: what the last probe cost beyond the window before it; NaN likewise */
};

typedef struct phub_scout phub_scout_t;

/* The paper's: hill climbing, and the numbers above. Without thetas. */
PHUB_API void phub_scout_options_init(struct phub_scout_options *options);

/*
 * A scout by itself, for those with a transport of their own: no connection, thread or clock. Each site has one, all
 * are given the same reports in the same order, and decide the same, bit by bit. One thread at a time. -EINVAL names a
 * value outside its limits. A window goes so; example_scout.c is a whole program:
 *
 *      { after each exchange: phub_scout_hear }
 *      phub_scout_host -> { each model is tried at home and there } -> phub_scout_observe -> phub_scout_decide
 *           -> phub_scout_apply -> phub_scout_theta
 */
PHUB_API int phub_scout_create(const struct phub_scout_options *options, phub_scout_t **out);
PHUB_API void phub_scout_destroy(phub_scout_t *scout);

/* In force; NaN for NULL. */
PHUB_API double phub_scout_theta(const phub_scout_t *scout);

/* To which site the model of `site`, of `sites` (2 or more), travels in this window: that of the middle of the
 * interval, as phub_site_step() has it. -EINVAL: no such site. */
PHUB_API int phub_scout_host(const phub_scout_t *scout, unsigned site, unsigned sites);

/*
 * After each exchange, for PHUB_SCOUT_PLUS and for decision.r, with d_k what site k said over its share: `said`, the
 * sum over sites of share_k ||d_k||^2, over all trained tensors, `heard`, ||sum share_k d_k||^2, and `squares`, the sum
 * of share_k^2; in float64, the same bits at all sites. `rate` is of learning. -EINVAL: NULL, or not 0 < squares <= 1.
 */
PHUB_API int phub_scout_hear(phub_scout_t *scout, double said, double heard, double squares, double rate);

/*
 * A window in three steps. observe: it is over, and reports[site] is what each said; again, before it is applied:
 * instead of the last. decide: what follows of it; nothing has changed yet. apply: what was decided is in force, and
 * the next window begins. -EINVAL: no sites, or more than 4096; -ENODATA: what comes before was not done.
 */
PHUB_API int phub_scout_observe(phub_scout_t *scout, const struct phub_scout_report *reports, unsigned sites);
PHUB_API int phub_scout_decide(phub_scout_t *scout, struct phub_scout_decision *decision);
PHUB_API int phub_scout_apply(phub_scout_t *scout);

/* What it is between two windows, for a checkpoint: returns how many bytes that is; out NULL: only that. -ENOSPC. */
PHUB_API int phub_scout_save(const phub_scout_t *scout, void *out, size_t bytes);
/* Into one with the same options. -EBADMSG: not whole; -EINVAL: of other options; and it is as it was. */
PHUB_API int phub_scout_load(phub_scout_t *scout, const void *in, size_t bytes);

/* How a model did on samples of one site: aggregates alone. */
struct phub_score {
	uint64_t samples; /* at the call: as many are asked for, 0: as you like; then: how many they were */
	/* Of them; what PHUB_SCOUT_HILL, STOCHASTIC and ANNEALING go by, whatever is taken for correct, as within a
	 * tolerance: with none anywhere AL is not known. By losses alone PHUB_SCOUT_PLUS goes. */
	uint64_t correct;
	double loss; /* sum over them, nats */
};

/*
 * The caller's: tries a model, weights[t] for each tensor, on a sample of this site's training data. The sample follows
 * from `draw`: of one draw it is the same, so that models are compared on the same. It is called by phub_site_step()
 * and phub_site_wait(), in their thread. Anything but 0, or a loss that is not finite: the report of that model says
 * nothing. It is not called with weights that are no finite numbers, of tensors that are trained or exchanged; whose
 * they were, of those that had none from others, stands in the reason.
 */
typedef int phub_evaluate(void *context, const float *const *weights, uint64_t draw, struct phub_score *score);

typedef struct phub_site phub_site_t;

/*
 * Sites in sites: links are fast inside of a rack, and slow between racks. So a process may have two sites of the same
 * weights, one `within` the other, each with a job, an algorithm, a theta and a scout of its own:
 *
 *      phub_connect (options.here) -> phub_site_open -> phub_site_tensor ... -> phub_site_start      within
 *      phub_connect -> phub_site_open (options.within) -> phub_site_start                            around it
 *           -> { phub_site_step of the one around }
 *           -> phub_leave both -> phub_site_close, the one around first -> phub_close
 *
 * Ranks and world are each job's own. A step of the one around is a step of the one within, with its exchange, then,
 * where the theta of the one around asks for it, the exchange of that: it is a PHUB_SITE_LOCAL, and says how far the
 * weights have gone that the sites within have in common, which is all but what a site has moved by itself and not said
 * within yet. What comes of it replaces them, at both, and what the site has moved stays on top. So at each of the two
 * what was said plus what is still to be said is all updates. A box that goes up (its option `uplink`) sums what its
 * workers say, so that a rack's link carries it once.
 *
 * Its tensors are those of the one within; momentum and the like it has none of. Samples, theta and flushes are each
 * one's own, but the last step of phub_site_flush() says all that is left within, and phub_site_loss() tells both. A
 * loss ends the job within for all of its rack. The racks that are left go on where the job around has
 * PHUB_LOST_SHRINK; nobody comes to it who was not there as it began. When boxes are lost, one or all, both jobs go on
 * with all their racks when those are there again, where both have resume_ms and PHUB_LOST_FAIL: phub_site_resume().
 */
struct phub_site_options {
	size_t size;                        /* set by phub_site_options_init() */
	enum phub_site_algorithm algorithm; /* PHUB_SITE_LOCAL */
	double theta;                       /* NaN: the paper's: 1, 0.1, 20, 0.001; with a scout its own */
	double momentum;                    /* of the site's SGD, from 0 to below 1; 0.9 */
	double weight_decay;                /* 0 */
	double rate_first;                  /* GAIA: the learning rate that theta is for; theta falls with it; 0.1 */
	enum phub_site_outer outer;         /* LOCAL */
	double outer_rate, outer_beta1, outer_beta2, outer_tau; /* NaN: the paper's */
	double clip;                                            /* DGC: norm of a mean gradient at most; 0: any; 0 */
	uint32_t warmup;                        /* DGC: steps in each of four stages of a looser theta; 0: none; 0 */
	uint64_t samples;                       /* of this site; 0: it has none, and counts for nothing; 1 */
	bool weighted;                          /* sites count by their samples; else all that have any are alike */
	const struct phub_scout_options *scout; /* NULL: theta stays */
	phub_evaluate *evaluate; /* NULL: this site's reports, and those of models that come here, say nothing */
	void *context;           /* evaluate()'s */
	/* The site of the lowest rank that has one writes the scout's decisions to this file, lines of JSON; without a
	 * scout a line at the start, and one at the end. NULL: PHUB_SCOUT_LOG, else it has none. It is begun anew with
	 * the run. When who writes it is lost or leaves, the lowest rank left that has one goes on, as a line tells, in
	 * that file, or, where it is not there, one of its own, FILE.siteRANK if FILE is another's; without shadows;
	 * not with PHUB_OUTER_BOX. If it cannot be written training goes on: phub_site_state.log_error. */
	const char *log;
	phub_site_t *within; /* NULL: none; see above */
	/* The class of link that it talks over: 1 to 16 of a-z and 0-9. It is named in the decision log, and "rack"
	 * has the environment's PHUB_SCOUT_RACK_THETA and so on instead of PHUB_SCOUT_THETA. NULL: none. */
	const char *link;
};

PHUB_API void phub_site_options_init(struct phub_site_options *options);

/*
 * A site on `p`, connected and without keys, which outlives it. -EINVAL names an option, of the site or of the job,
 * that cannot be, or a site within that has not started; -ENOTSUP: not with PHUB_OUTER_BOX, a policy that finds no
 * theta of this algorithm, or not with a site within: another algorithm, one more within that, jobs of which one may
 * resume and the other not, that resume without some, wait or let somebody in, or have no progress thread; -EBUSY: it
 * has keys, or was started, or another site is around the one within; errors of open(2): the log.
 */
PHUB_API int phub_site_open(phub_t *p, const struct phub_site_options *options, phub_site_t **out);

/*
 * Names the next tensor: `elements` weights, which are the caller's, stay where they are, and are written only by the
 * calls below. What is not `trained` has no gradients (running statistics: the model writes them): PHUB_SITE_LOCAL
 * averages it, with the others it stays at its site. Returns its index: 0, 1, ... Errors are phub_key()'s; -EINVAL:
 * there is a site within, whose tensors it has.
 */
PHUB_API int phub_site_tensor(phub_site_t *site, const char *name, float *weights, uint32_t elements, bool trained);

/*
 * Collective: phub_start(), and then all begin alike: with rank 0's weights; where the job runs already, with the
 * others' weights, step number, theta and scout. -ETIMEDOUT: call again to go on waiting. -EINVAL: no tensors; or the
 * site within was closed, which all calls but that of close say then. -ENOTSUP: with a site within, in a job that runs.
 */
PHUB_API int phub_site_start(phub_site_t *site, int timeout_ms);

/*
 * A mini-batch: its mean gradient, gradients[t] for each trained tensor; NULL: this site had no samples. `rate` is the
 * same at all sites. Then, where theta asks for it, the exchange: 0 when it is over, or none was due. -ETIMEDOUT: the
 * step is made, and the exchange on its way: phub_site_wait() goes on waiting. -EBUSY: it still is on its way, or this
 * site is within another, which steps: nothing was done. -ESTALE: phub_site_resume(). The session's end otherwise:
 * weights are whole, and what was not said yet is still to be said, by nobody.
 *
 * With a scout a window ends with the first exchange that is due when its period is over (of PHUB_SCOUT_PLUS, while it
 * measures, 10 steps). Just before it each site's model travels to phub_scout_host(), and is tried there and at home,
 * on the sample that all have who are tried there; reports come with the exchange, and theta holds from its end on. Who
 * waits for others meanwhile waits for their evaluate(). With PHUB_SCOUT_PLUS the mean model is tried at home instead,
 * where there is time for that: after that exchange or, where the algorithm leaves what is not trained at its site,
 * after the next, in which sites show each other that (4 bytes an element); of it, too, the mean is tried.
 *
 * The model that travels is that of the middle of the interval which this exchange ends: as it was after theta / 2 of
 * its steps, rounded down. The site keeps a copy of it until then. With theta 1, and with BSP, GAIA and DGC, it is what
 * the exchange before has left. So where sites talk at each step all models are equal and lose nothing away from home;
 * those of GAIA differ by what was not significant, those of BSP and DGC, which sums alone move, not at all. The model
 * of who was not there then is tried as it is; so it is after a restart in mid-interval, as no checkpoint has the copy.
 *
 * A worker that is lost (options.lost) is out of the mean from the next exchange on; in the one it was lost in, its
 * part is missing. Where somebody comes while models travel they set out anew; of the model of who came in a window its
 * report says nothing.
 */
PHUB_API int phub_site_step(phub_site_t *site, const float *const *gradients, double rate, int timeout_ms);
PHUB_API int phub_site_wait(phub_site_t *site, int timeout_ms);

/* What the mini-batch of the last or the next step lost as it was trained: `loss`, the sum over its `samples`. Without
 * it PHUB_SCOUT_PLUS tries no model, and does not see what no theta mends. -EINVAL: NULL. */
PHUB_API int phub_site_loss(phub_site_t *site, double loss, uint64_t samples);

/*
 * What the mean model makes of data that the caller holds out and has tried it on, for the decision log, so at the site
 * that writes it; elsewhere it is nowhere seen. At any time until phub_site_close(): the latest stands in the log's
 * end, and in the next window's line if it is new there. `correct` UINT64_MAX, and a `loss` that is not finite: not
 * known. The run's seconds beside it, from phub_site_start() to the end of the last step, count no trial after that.
 * -EINVAL: NULL, no samples, or more correct than there are.
 */
PHUB_API int phub_site_score(phub_site_t *site, const struct phub_score *score);

/* After -ESTALE (phub_options.resume_ms): phub_resume(), and all go on from the weights of one that has been in the
 * most exchanges. What no exchange has taken is still to be said, once. -ETIMEDOUT: call again; 0 at once when nothing
 * was lost. A box of PHUB_OUTER_BOX goes on as phub_resume() says. With a site within, both jobs that were lost: calls
 * on the one around are -ESTALE where either is. */
PHUB_API int phub_site_resume(phub_site_t *site, int timeout_ms);

/* From the next exchange on: this site's samples. -EBUSY as phub_site_step(). */
PHUB_API int phub_site_set_samples(phub_site_t *site, uint64_t samples);

/* From the next step on, at all sites after the same one. -EINVAL: not this algorithm's, or a scout sets it; -EBUSY. */
PHUB_API int phub_site_set_theta(phub_site_t *site, double theta);

/* Before the last step of a site that leaves: its exchange says all that is left to say, where it is due. -EBUSY. */
PHUB_API int phub_site_flush(phub_site_t *site);

struct phub_site_state {
	size_t size;    /* the caller's sizeof */
	uint64_t steps; /* of the run: for who came later, the others' */
	uint64_t exchanges;
	double theta, share;   /* its part in the mean; all parts sum to 1 */
	unsigned sites;        /* in the last exchange */
	uint64_t values;       /* that it has said */
	uint64_t bytes;        /* of these, as the papers count: 4 a value, 8 an index */
	uint64_t bytes_travel; /* of its model, or of what is not trained of it, to be tried, likewise */
	uint64_t bytes_wire;   /* payload that it has pushed, of all kinds */
	uint64_t windows;      /* that a scout has decided on */
	uint64_t bytes_within; /* as `bytes` and `bytes_travel` together, by the site within */
	int log_error; /* of the first line of the decision log that was not written, nor any after it; 0: none */
	uint64_t broken_since; /* the step from which on its model is no numbers, as exchanges show; 0: it is */
};
PHUB_API int phub_site_state(phub_site_t *site, struct phub_site_state *state);

/* Ranks of those `sites`, in rising order, to ranks[0 .. count]. Returns how many they are; 0 before phub_site_start(),
 * and with PHUB_OUTER_BOX, where nobody knows. -EINVAL: NULL. */
PHUB_API int phub_site_ranks(phub_site_t *site, uint32_t *ranks, unsigned count);

/* The scout's last decision. -ENODATA: there is none yet. */
PHUB_API int phub_site_decision(phub_site_t *site, struct phub_scout_decision *decision);

/* How sites have aligned in the last window, r of decision.r for each tensor alone, to r[0 .. count]; NaN: not known.
 * Returns how many tensors there are. -ENODATA as above; -EINVAL: NULL. */
PHUB_API int phub_site_alignment(phub_site_t *site, double *r, unsigned count);

/*
 * What training goes on with and should be known, each once: a site, this one or another, says what is no number. All
 * that are in that exchange hear it by the end of the call that ends it. The text names rank, tensor, steps and what to
 * do: with PHUB_NAN_PASS it is in all weights from then on, and who has it of others is not named; with PHUB_NAN_ZERO
 * the others go on without it, and that site has no momentum there any more, or, if its weights are no numbers, begins
 * anew with the others' at one of the next exchanges; PHUB_NAN_FAIL ends the job instead. A site is named once in a
 * run. Where none has numbers left training does not come out of it, as the text says: calls go on to return 0, and
 * phub_site_state.broken_since tells. With a site within, it is also of that one's job. NULL: nothing new. Valid until
 * the next call on the site.
 */
PHUB_API const char *phub_site_warning(phub_site_t *site);

/* Frees it; NULL is allowed. With an exchange on its way it leaves the job first, unfinished. Before phub_close(), and
 * before the one within it. */
PHUB_API void phub_site_close(phub_site_t *site);

#ifdef __cplusplus
}
#endif

#endif
