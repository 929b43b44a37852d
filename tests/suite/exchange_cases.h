/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of test_exchange; their state is the row's struct stage. */
#ifndef PHUB_TESTS_SUITE_EXCHANGE_CASES_H
#define PHUB_TESTS_SUITE_EXCHANGE_CASES_H

#include <stddef.h>
#include <stdint.h>

#include "tests/unit/cmocka_shim.h"

/* On every row. */
extern const struct CMUnitTest exchange_sum_cases[];
extern const size_t exchange_sum_count;
extern const struct CMUnitTest exchange_step_cases[];
extern const size_t exchange_step_count;
extern const struct CMUnitTest exchange_sparse_cases[];
extern const size_t exchange_sparse_count;
/* On one row of every transport. */
extern const struct CMUnitTest exchange_memory_cases[];
extern const size_t exchange_memory_count;
extern const struct CMUnitTest exchange_life_cases[];
extern const size_t exchange_life_count;
extern const struct CMUnitTest exchange_error_cases[];
extern const size_t exchange_error_count;
/* Likewise; they load a stand-in for CUDA, which then stays. */
extern const struct CMUnitTest exchange_device_cases[];
extern const size_t exchange_device_count;
/* Where RDMA devices do the work, on one row. */
extern const struct CMUnitTest exchange_rdma_cases[];
extern const size_t exchange_rdma_count;
/* Where the library has threads of its own, on one row of every transport. */
extern const struct CMUnitTest exchange_thread_cases[];
extern const size_t exchange_thread_count;

#endif
