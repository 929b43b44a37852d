/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of the transport suite, by file. Each takes its fixture as cmocka's state and builds a
 * rig of its own; test_transport.c stamps them on every transport.
 */
#ifndef PHUB_TESTS_SUITE_TRANSPORT_CASES_H
#define PHUB_TESTS_SUITE_TRANSPORT_CASES_H

#include <stddef.h>
#include <stdint.h>

#include "tests/unit/cmocka_shim.h"

extern const struct CMUnitTest transport_handshake_cases[];
extern const size_t transport_handshake_count;
extern const struct CMUnitTest transport_message_cases[];
extern const size_t transport_message_count;
extern const struct CMUnitTest transport_queue_cases[];
extern const size_t transport_queue_count;

#endif
