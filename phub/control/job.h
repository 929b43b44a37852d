/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job: its ranks, its key table, and its memory on the cores. It forms while ranks come and send their tables, runs
 * when all tables are equal, and ends when all ranks have left or one was lost. Its name is free as soon as it ends,
 * before the cores have given its shards back. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_JOB_H
#define PHUB_CONTROL_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/control.h"
#include "phub/control/generation.h"
#include "phub/control/names.h"
#include "phub/control/table.h"
#include "phub/spec.h"
#include "transport/control.pb-c.h"

struct mirror;
struct parent;
struct peers;
struct session;

#define JOB_SAMPLES           4u /* for rates: over the last seconds */
#define JOB_SAMPLE_NS         1000000000ull
#define JOB_NOTICE_NS         1000000000ull /* who is missing is told this often */
#define JOB_ASKED_NS          300000000ull  /* who is connected again has asked for what it lacks */
#define JOB_DRAIN_NS          5000000000ull /* results go out so long after a job has failed, or lost_ms if less */
#define JOB_ROOM_NS           5000000000ull /* a start waits so long for memory of jobs that end */
#define JOB_REASON_BYTES      200u
#define JOB_ADVICE_BYTES      800u
#define JOB_WHY_BYTES         120u
#define JOB_WHYS_MAX          64u /* of those that a message has */
#define JOB_PAUSED_BYTES      160u
#define JOB_BESIDE_MAX        8u   /* jobs at once beside one that the operator listed, under its entry */
#define JOB_HYPER_PENDING_MAX 256u /* versions of which some ranks have not sent theirs */
#define JOB_HYPER_SENT_MAX    64u  /* versions on their way to cores: above that its ranks are not read */

enum job_state {
	JOB_FORMING,  /* ranks join and send their tables */
	JOB_RUNNING,  /* its shards are with the cores */
	JOB_LOADING,  /* its checkpoint is being read; no shard is with a core yet */
	JOB_TAKING,   /* its workers came from another box: their job's mirror becomes theirs (job_mirror.h) */
	JOB_REKEYING, /* all ranks have sent their next tables; the old shards are on their way back */
	JOB_ENDING,   /* no rank is in it any more; the shards are on their way back */
};

/* One rank, or a box below (job_below.h). */
struct member {
	struct session *session; /* NULL: not here */
	bool left;               /* in good order */
	bool finished;           /* who leaves says that the training is */
	uint64_t leaves;         /* not 0: it will have when the standby knows (standby_leaves()) */
	bool gone;               /* lost, or left where the job goes on without: its place is free */
	bool elsewhere;    /* gone, for it is at another box (job_below.h), or the place of a box that is not there */
	uint32_t at;       /* elsewhere: the member that is its box, or JOB_AT_OTHER */
	bool absent;       /* elsewhere: it was there, and is nowhere now */
	bool newcomer;     /* gone: it was elsewhere, and this box does not wait for it */
	uint32_t gathered; /* of a box below: its last Gather, and what that says of where others reach it */
	char host[CONFIG_HOST_BYTES];
	uint16_t port;
	bool deep; /* of a box below: others are below it */
	bool leaf; /* likewise: no other box calls it */
	bool tls;
	unsigned cores;
	bool quit;                    /* gone: it left, */
	char lost_why[JOB_WHY_BYTES]; /* or else this is why it was lost last; "": it was not */
	bool joins;                   /* its table is equal: the next change of membership lets it in */
	uint64_t gone_ns;
	bool tabled;       /* its next table came, and is equal to the reference or was found different */
	bool resumes;      /* it was in the job when that ran before */
	bool waits;        /* at a barrier */
	uint64_t barrier;  /* the last one it came to */
	uint64_t waits_ns; /* since when it waits for others (start or barrier) */
	uint32_t hyper;    /* its newest version */
	/* The last end of a data connection of it, or the first of several until one was made anew. */
	uint64_t link_ended_ns; /* 0: none ended */
	bool link_renewed;
	uint32_t link_core;
	int link_error;
	char link_text[MAIL_TEXT_BYTES]; /* what its transport said of it, or "" */
	char peer[NAMES_ADDRESS_BYTES]; /* whom its session is with: of a worker the port, too, that it happens to have;
					   of a box below where others reach it */
	char name[CONFIG_NAME_BYTES];   /* of a box below (names.h) */
	char paused[JOB_PAUSED_BYTES];  /* likewise: by whom the job is paused there, and why; "": it is not */
	char transport[TABLE_TRANSPORT_BYTES];
};

/* A version of the hyper-parameters that some ranks have not named yet. */
struct hyper_pending {
	struct hyper_pending *next;
	struct hyper_table *table;
	uint32_t first; /* the rank that named it first */
};

struct job_sample {
	uint64_t at_ns, rounds, bytes;
};

struct job {
	struct job *next;
	struct control *control;
	char name[SPEC_NAME_BYTES];
	uint32_t id;
	enum job_state state;
	uint32_t ranks;         /* workers, wherever they are */
	uint32_t world;         /* `ranks`, and boxes below */
	struct member *members; /* [world] */
	uint32_t present;       /* with a session */
	uint32_t left;          /* in good order */
	uint64_t created_ns;

	char hierarchy_why[512]; /* at the top box, of hierarchy: auto: which, and why; "": it is not, or has not begun
				  */

	struct table *reference; /* the next table: the first that came */
	uint32_t reference_rank;
	uint64_t reference_counted; /* its share of control->table_bytes */
	uint32_t tabled;            /* members with one */
	struct err mismatch;        /* code 0: the tables are equal so far */
	uint64_t mismatch_ns;

	struct generation *generation; /* what runs, or is on its way back; NULL: nothing */
	uint32_t started;              /* generations so far */
	uint64_t rounds; /* before this generation: in others, by the checkpoint that it goes on from, at another box */
	struct hyper_pending *hypers; /* oldest first */
	uint32_t hyper_count;
	uint32_t hyper_sent; /* versions that some cores of this generation have not taken yet */
	uint32_t hyper_asked,
		hyper_agreed;         /* where the top box must agree: the newest that was said, and that it did */
	bool plain_told;              /* that it is encrypted, and a session of its workers is not */
	bool stuck_told;              /* that ranks come by shared memory, and cannot go on at the standby */
	uint64_t reconnects;          /* data connections that were made anew */
	uint64_t losses, joins;       /* of ranks, while it ran */
	uint64_t dropped[DROP_COUNT]; /* messages, in generations that are over */

	/* Membership, of a job that runs (job_members.c). */
	uint32_t epoch;
	struct members *change;      /* under way; NULL: none is */
	bool going;                  /* it is at its second step */
	bool gone_on;                /* all cores are done with both */
	bool stays;                  /* they are done with the first, and the second waits for hyper-parameters */
	unsigned change_left;        /* cores that are not done with the step */
	struct members *next_change; /* ranks that were lost or came meanwhile, or NULL */
	uint64_t after;              /* who comes and was at another box takes part in no round before this one */
	uint64_t nowhere[WIRE_WORLD_MAX / 64]; /* before the start: ranks (bits) that are nowhere at the box above */
	uint64_t barrier;                      /* the last one that was passed */
	/* bsp: the newest version that cores were sent; ssp, async: how many were. And what the last one says. */
	uint32_t hyper;
	struct optimizer_hyper groups[SPEC_GROUPS_MAX];

	struct keeper *keeper; /* of its checkpoints (job_checkpoint.c); NULL: it has none */
	bool kept;             /* some of its name may be on disk that it neither wrote nor went on from */
	/* What the operator wants of it (job_operator.c). */
	bool paused, draining;
	bool paused_told; /* to the box above */
	char reason[JOB_REASON_BYTES];
	uint64_t drain_ns;   /* when it begins to, of a job that came here while it drained; 0: it has */
	uint64_t *stops;     /* of the shards that drain */
	unsigned drain_left; /* cores that have not */

	struct parent *parent; /* the box above has a part in it (parent.h); NULL: there is none */
	struct peers *peers;   /* it takes part in an exchange of boxes (peers.h); NULL: it does not */
	bool finished;         /* all say that the training is */
	uint64_t concludes_ns; /* all that were here have left, and boxes beside are owed results; 0: not so */
	uint64_t whole_ns;     /* and since then they are all connected; 0: not all */
	enum dtype lift;       /* of sums from box to box */

	/* Standby (job_mirror.h). */
	struct mirror *mirror; /* another box's job, of which this is the copy; NULL: its workers are here */
	bool moves;            /* its workers were another box's, and it goes on from the mirror of its name... */
	struct job *takes;     /* ...which is this one, once it was begun */
	uint16_t *placement;   /* [placement_count] the core of each chunk, after another box; NULL: chosen here */
	uint32_t placement_count;

	bool bereaved;    /* it ends because a worker was lost */
	bool deserted;    /* it ends here, for all of its workers at this box were lost: it may go on elsewhere */
	uint64_t room_ns; /* since when its start waits for memory of jobs that end; 0: it does not */

	uint64_t noticed_ns; /* when who is missing was told */
	char waiting[400];   /* what the oldest open round waits for */
	uint64_t waiting_ns; /* 0: that is over */
	bool waiting_above;  /* the box above has said so */
	uint64_t waiting_round;
	uint32_t waiting_chunk;
	struct job_sample samples[JOB_SAMPLES];
	unsigned sample_count; /* ever taken */
};

/* By name, among those that have not ended and are no mirrors; NULL when there is none. */
struct job *job_find(struct control *c, const char *name);

/* ---- job.c ---- */

/* The job that the session names and that is not there yet. NULL after refusing the session. */
struct job *job_found(struct session *s);
/* A job that is not there yet. NULL: no memory. */
struct job *job_create(struct control *c, const char *name, uint32_t world);
/* May there be one more, of any kind, under the entry of the operator's list that this name is beside? False when the
 * session was refused. */
bool job_admits_beside(struct session *s);
/* Its name is free; its shards come back in their time. */
void job_end(struct job *job, uint64_t drain_ns);
/* Makes the session a rank of the job it named, which is created when it is not there. 0, or a negative errno after
 * refusing it. */
int job_join(struct session *s);
/* The session is gone without leaving. It no longer belongs to the job. */
void job_lost(struct session *s, const char *why);
/* It leaves in good order; the job ends with its last one, and is finished if all that were in it until then said so.
 */
void job_leave(struct session *s);
/* In each tick, where it ends with that. */
void job_conclude_tick(struct job *job);
/*
 * Ends the job: every rank gets the Error, and, for JOB_DRAIN_NS at most, the results of rounds that were committed.
 * `rank`: whose fault, -1 for nobody's.
 */
void job_fail(struct job *job, Phub__ErrorCode code, int rank, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* What a rank did, or what befell it, ends it, and the job if that is its policy. */
void job_blame(struct job *job, Phub__ErrorCode code, uint32_t rank, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Of a job that ends: what is still to go out to its ranks no longer does. */
void job_hurry(struct job *job);
/* Frees the jobs whose shards are all back. */
void job_reap(struct control *c);
const char *job_state_name(enum job_state state);

/* ---- job_start.c: tables and generations ---- */

void job_hear_table(struct session *s, const Phub__Job *message);
/* Adds them to the session's table, or refuses the session. True when that is whole. */
bool job_add_keys(struct session *s, const Phub__Keys *message);
void job_hear_keys(struct session *s, const Phub__Keys *message);
/* As table_compare(): of two members. */
int job_compare_tables(const struct job *job, const struct table *a, uint32_t of_a, const struct table *b,
	uint32_t of_b, struct err *e);
/* What an errno of tables and generations is on the wire. */
Phub__ErrorCode job_code(int error);
/* The key of an encrypted generation's results, for this session, into `start` by way of `wrapped`
 * (CRYPT_WRAPPED_BYTES). False when the session was refused. */
bool job_wrap_key(struct session *s, const struct generation *g, uint8_t *wrapped, Phub__Start *start);
/* Is this seal easier to make than the box wants? */
bool job_seal_is_weak(const struct config *config, enum seal_kind seal);
/*
 * There is no memory: jobs that are over have some until their last results are out. Those who want to start anew need
 * it more: the others are hurried, and the start is tried again when they are gone. False: nobody has any to give.
 */
bool job_await_room(struct job *job);
/* All tables are equal, and no shard of an older generation is out: makes the generation, and goes. */
void job_start(struct job *job);
/* Starts when all tables are there, fails when they differ. */
void job_try_start(struct job *job);
/*
 * A job that comes again after it was lost, and shrinks, does not wait for ever for ranks that do not: when nobody has
 * come for lost_ms, it begins without them. They may join it later. Those of other policies are waited for.
 */
void job_begin_tick(struct job *job);
/* The checkpoint is read: goes on if it can. */
void job_load_tick(struct job *job);
/* The last of the old shards is back: builds the next generation. */
void job_restart(struct job *job);
/* Adds the messages that were dropped, of all its generations, by enum shard_drop. */
void job_add_dropped(const struct job *job, uint64_t sums[DROP_COUNT]);
/* Memory of jobs that ended is free again, or will not be in time: starts that wait for some are tried again. */
void job_start_waiting(struct control *c);
void job_drop_reference(struct job *job);
/* Start, for a rank that comes while the job runs: it takes part in the rounds `from`, one for each chunk. */
void job_write_joined(struct job *job, uint32_t rank, const uint64_t *from);
/* Start, for a box that lifts chunks to this one (peers.h), by this session. */
void job_write_beside(struct job *job, uint32_t member, struct session *s);
/* Start, for all of a job that goes on here from its mirror: `rounds` are those that its chunks collect. */
void job_write_moved(struct job *job, const uint64_t *rounds);
/* The rank that sent the reference is gone: another takes over, or none. */
void job_forget_table(struct job *job, uint32_t rank);

/* ---- job_hyper.c ---- */

void job_hear_hyper(struct session *s, const Phub__Hyper *message);
/* ssp, async: who comes in a lost rank's place goes on with the newest values that any rank has set. May fail the job.
 */
void job_hyper_hand_on(struct job *job, uint32_t rank);
/* Is this a version for the job's groups? 0, or with the reason in `e` -EPROTO or -EINVAL. */
int job_hyper_check(const struct spec *spec, const Phub__Hyper *message, uint32_t version, struct err *e);
/* A version that the job's box has sent to its cores goes to those of the mirror. 0 or -ENOMEM. */
int job_hyper_pass(struct job *job, const Phub__Hyper *message);
/* A core has copied the table. `job`: whose, or NULL when its generation is over. */
void job_hyper_taken(struct control *c, struct job *job, struct hyper_table *table);
void job_hyper_forget(struct job *job);
/* Frees what cores never gave back: when none runs any more. */
void job_hyper_fini(struct control *c);

/* The newest version that all here have named, and its values: with these who comes goes on. */
const struct optimizer_hyper *job_hyper_newest(const struct job *job, uint32_t *version);
/* The top box says that all have named this version. */
void job_hyper_agree(struct job *job, uint32_t version);
/* Ranks are gone: versions that all others have named go to the cores. */
void job_hyper_recount(struct job *job);

/* ---- job_checkpoint.c ---- */

/*
 * Begins to look for what the job's new generation goes on from, and to read it; that waits for what an earlier job of
 * its name still writes. False: nothing is looked for, it begins anew. Without memory to look, job_restored() fails the
 * job; one that has its weights goes on without checkpoints, which is logged.
 */
bool job_restore(struct job *job);
/* 0 with the round that each chunk begins with, or NULL: it begins anew; -EAGAIN: not yet; else the job has failed. */
int job_restored(struct job *job, const uint64_t **from);
/* A core has answered: MAIL_SNAPPED. */
void job_snapped(struct job *job, const struct mail *mail);
void job_keep_tick(struct job *job);
/* For the operator. False: it has none. Text is the job's, and lasts until the next step of control. */
bool job_keep_describe(const struct job *job, Phub__CheckpointInfo *out);
/* How many checkpoints it went on from and wrote since the box runs it, and the round of the newest. */
uint64_t job_kept(const struct job *job, uint64_t *round);
/* All ranks have left, and the training is finished: a job that comes with this name begins anew. */
void job_keep_finished(struct job *job);

/* ---- keeper.c ---- */

/*
 * The job is over, or its key table is; no core refers to its checkpoint any more. What a disk is still at goes on
 * without it: then the memory stays counted, and job->generation is NULL if that is being read into.
 */
void job_keep_forget(struct job *job);
/*
 * Looks after what jobs that are loading wait for, and after what jobs have left behind; in a box that is turned by
 * hand does a little of all that is read and written. Returns when there is more to do by itself; UINT64_MAX: never.
 */
uint64_t job_keep_step(struct control *c);
/* Is memory still taken for jobs that are over? */
bool job_keep_holds(const struct control *c);
/* No job is there any more: waits for what they left behind, but not for ever. */
void job_keep_fini(struct control *c);

/* ---- job_barrier.c ---- */

void job_hear_barrier(struct session *s, uint64_t id);
/* Ranks are gone: opens it for the others. */
void job_barrier_recount(struct job *job);

/* ---- job_members.c: ranks are lost, and come, while the job runs ---- */

/* How many of the world take part. */
static inline uint32_t job_live(const struct job *job)
{
	uint32_t live = job->world;

	for (uint32_t i = 0; i < job->world; i++)
		live -= job->members[i].gone;
	return live;
}
/* Does this rank take part, at whatever box? */
bool job_is_somewhere(const struct job *job, uint32_t rank);
/* Is it lost, for people and for those below? With one of the boxes that exchange all of the job ends: who is at one is
 * not. */
bool job_is_lost(const struct job *job, uint32_t rank);
/* Since when it does not: of who went with a box, since that did. */
uint64_t job_gone_ns(const struct job *job, uint32_t rank);
/* How many are not lost. */
uint32_t job_count_somewhere(const struct job *job);
/* Who is gone, or has come, as far as others must know: `lost` and `came` are ranks. */
void job_members_spread(struct job *job, const uint64_t *lost, const uint64_t *came, const struct session *but);
/* A rank that takes part, to speak of. */
static inline uint32_t job_first_live(const struct job *job)
{
	uint32_t rank = 0;

	while (rank + 1 < job->world && job->members[rank].gone)
		rank++;
	return rank;
}
/* Is this rank gone, and nobody waits here for it, or another in its place? */
static inline bool job_is_let_go(const struct job *job, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	return m->elsewhere || (m->gone && job->generation && job->generation->spec.lost == LOST_SHRINK);
}
/* So long a job waits for the replacement of a rank that was lost. */
uint64_t job_wait_ns(const struct job *job);
/* A rank that took part is gone, its session is no longer in the job. `why` NULL: it left. False: the job must fail. */
bool job_members_lose(struct job *job, uint32_t rank, const char *why);
/* Another box has taken in who was lost here: nobody waits for it any more. */
void job_members_release(struct job *job, uint32_t member);
/* A session took the place of one that is gone, and its table is whole. Takes the table. */
void job_members_join(struct session *s);
/*
 * From the round that each chunk collects to one that no chunk of its key has committed. Jobs exchange all keys in each
 * step: keys that are one round behind the furthest get its round, too, so that the cut lies between two steps. Returns
 * the furthest.
 */
uint64_t job_level_rounds(const struct chunk_plan *plan, uint64_t *rounds);
/* Hyper-parameters were completed: a change that waits for them goes on. */
void job_members_resume(struct job *job);
/* Is this one let in, and all its rounds come after those for which hyper-parameters are awaited? */
bool job_members_is_ahead(const struct job *job, uint32_t member);
/* A core has taken a step: MAIL_HELD, MAIL_WENT. */
void job_members_step(struct job *job, const struct mail *mail);
/* All are told who is not there as it starts; where nobody lacks, nothing. */
void job_members_tell_absent(struct job *job);
/* Fails the job when it has waited for a replacement for too long. */
void job_members_tick(struct job *job);
void job_members_forget(struct job *job);
/* No round is begun any more; MAIL_DRAINED comes of each core when those that are open are committed. */
void job_members_drain(struct job *job);

/* Chunks get other homes (peers_move.h): nothing is committed or lifted any more, and peers_move_held() hears which
 * rounds chunks collect. False: another change is under way, or the job has failed. */
bool job_members_hold(struct job *job);
/* What was held goes on up to these rounds, and MAIL_DRAINED comes of each core; NULL: it goes on. */
void job_members_stop(struct job *job, const uint64_t *rounds);

/* ---- job_operator.c: what `phub jobs` may do ---- */

/* Is this a command about one job? */
bool job_operator_knows(const char *command);
/* Does it. 0, with what there is to tell in `said` and, of a rebalance, its number (peers_move.h), or -EINVAL, -ENOENT,
 * -EBUSY or -ENOMEM with what to do in `e`. */
int job_operate(struct control *c, const char *command, const char *name, const char *reason, char *said,
	size_t said_bytes, uint32_t *number, struct err *e);
/* Begins what is due. */
void job_operator_tick(struct job *job);
/* A core has drained. */
void job_drained(struct job *job);
/* It drains, and no round is open in any core. */
void job_end_drained(struct job *job);
/* "The job ends here; look at that worker", or box, or, where a standby has the whole job, where they may have gone.
 * What workers do then they add themselves: some resume. Returns `out`. */
const char *job_advice(const struct job *job, uint32_t member, char *out, size_t bytes);
/* Keeps why it is paused, drained or ended, as what may go to logs and terminals. */
void job_keep_reason(struct job *job, const char *reason);
/* A box below says that its operator paused the job there, or that it goes on. */
void job_hear_paused(struct session *s, const Phub__Heartbeat *message);
/* "it is paused at box 10.0.2.1:7077 (ranks 2, 3): the box's operator paused it: REASON"; "": it is not. */
void job_describe_paused_below(const struct job *job, char *out, size_t bytes);
/* "the operator paused it: REASON", or "" when it goes on. */
void job_operator_describe(const struct job *job, char *out, size_t bytes);

/* ---- job_notice.c: who is missing ---- */

/* What the box above tells of who is missing, all here are told. */
void job_pass_notice(struct job *job, const Phub__Notice *notice);
void job_tell_silent(struct session *s, uint64_t silent_ms);
void job_tell_heard(struct session *s);
void job_tick(struct job *job);
/* Are there boxes beside that get results here, and have not left? Has the connection of one *broken, which it makes
 * anew? */
bool job_serves_beside(const struct job *job, bool *broken);
void job_stalled(struct job *job, const struct mail *mail);
/* A rank asks who is missing from what it waits for. */
void job_hear_who(struct session *s, const Phub__Who *message);
/* A core answers that. `job`: whose, or NULL when its generation is over. */
void job_missing(struct control *c, struct job *job, const struct mail *mail);

/* ---- job_mail.c ---- */

/* A mail from a core, about whatever job. */
void job_mail(struct control *c, const struct mail *mail);

/* A worker says that its end of the connection to this core broke. */
void job_hear_broken(struct session *s, uint32_t core, const char *text);

/* "key 'fc.weight'", or "key 'a' (and 3 more of its chunk)". `at`: a byte in the chunk, or UINT32_MAX for all of it. */
void job_chunk_keys(const struct job *job, uint32_t chunk, uint32_t at, char *out, size_t bytes);

#endif
