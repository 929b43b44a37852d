/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table of launchers, for C and Python alike.
 */
#include "client/launcher.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct launcher {
	const char *rank, *world;
};

static const struct launcher launchers[] = {
	{"RANK", "WORLD_SIZE"},
	{"JOB_COMPLETION_INDEX", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
	{"SLURM_PROCID", "SLURM_NTASKS"},
};

static int launcher_read(const char *name, int *out, struct err *e)
{
	const char *text = getenv(name);
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno || value < 0 || value > INT_MAX)
		return err_set(e, -EINVAL,
			"environment variable %s='%.64s' is not a number; unset it, or give rank and world", name,
			text);
	*out = (int)value;
	return 0;
}

/* Halves that leave no doubt: Slurm sets no SLURM_NTASKS in a batch script without --ntasks, and no SLURM_PROCID in
 * salloc's shell. */
static bool launcher_is_alone(const struct launcher *l)
{
	const char *rank = getenv(l->rank), *world = getenv(l->world);

	if (strcmp(l->rank, "SLURM_PROCID") != 0)
		return false;
	return rank ? strcmp(rank, "0") == 0 : strcmp(world, "1") == 0;
}

/* No launcher set both of its variables. One alone would make each worker rank 0 of 1, with a job of its own. */
static int launcher_refuse_halves(struct err *e)
{
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const struct launcher *l = &launchers[i];
		bool has_rank = getenv(l->rank) != NULL, has_world = getenv(l->world) != NULL;

		if (has_rank == has_world || launcher_is_alone(l))
			continue;
		return err_set(e, -EINVAL,
			"environment variable %s is set but %s is not; set both (a launcher does), unset %s, or give "
			"rank and world",
			has_rank ? l->rank : l->world, has_rank ? l->world : l->rank, has_rank ? l->rank : l->world);
	}
	return 0;
}

int launcher_discover(int *rank, int *world, struct err *e)
{
	size_t count = sizeof(launchers) / sizeof(launchers[0]);

	for (size_t i = 0; i < count && (*rank < 0 || *world < 0); i++) {
		const struct launcher *l = &launchers[i];
		int rc = 0;

		if (!getenv(l->rank) || !getenv(l->world))
			continue;
		if (*rank < 0)
			rc = launcher_read(l->rank, rank, e);
		if (rc == 0 && *world < 0)
			rc = launcher_read(l->world, world, e);
		return rc;
	}
	if ((*rank < 0 && *world != 1) || *world < 0) {
		int rc = launcher_refuse_halves(e);

		if (rc < 0)
			return rc;
	}
	if (*rank < 0 && *world > 1)
		return err_set(e, -EINVAL,
			"world is %d but no rank was given, and no launcher's variables are set (RANK, "
			"JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID)",
			*world);
	if (*world < 0 && *rank > 0)
		return err_set(e, -EINVAL,
			"rank is %d but no world was given, and no launcher's variables are set (WORLD_SIZE, "
			"OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS)",
			*rank);
	*rank = *rank < 0 ? 0 : *rank;
	*world = *world < 0 ? 1 : *world;
	return 0;
}
