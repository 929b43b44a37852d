/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which worker of how many this process is, by what the launcher that started it has set. Reads the environment alone;
 * any thread.
 */
#ifndef PHUB_CLIENT_LAUNCHER_H
#define PHUB_CLIENT_LAUNCHER_H

#include "phub/base/err.h"

/*
 * Rank and world by the first of these whose two variables are set, else 0 of 1:
 *
 *      RANK, WORLD_SIZE                             torchrun, PyTorchJob
 *      JOB_COMPLETION_INDEX, WORLD_SIZE             Kubernetes, an indexed Job (WORLD_SIZE by its manifest)
 *      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   Open MPI
 *      PMI_RANK, PMI_SIZE                           MPICH, Intel MPI, srun --mpi=pmi2
 *      SLURM_PROCID, SLURM_NTASKS                   srun
 *
 * What starts processes inside of what another one has started comes first, as torchrun under srun. Those that are >= 0
 * already stay. 0, or -EINVAL naming the variable that is no number, or that lacks the other.
 */
int launcher_discover(int *rank, int *world, struct err *e);

#endif
