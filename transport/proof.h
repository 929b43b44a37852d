/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof of a shared secret, by both sides of a control session and by every data connection.
 * HMAC-SHA-256 over labelled, fixed-length input; the session key by HKDF over both nonces; all from
 * libcrypto. Pure but for the random source. Any thread.
 */
#ifndef PHUB_TRANSPORT_PROOF_H
#define PHUB_TRANSPORT_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROOF_NONCE = 16, PROOF_MAC = 32, PROOF_KEY = 32, PROOF_PLACE = 32, PROOF_CHANNEL = 32 };

/* What both sides of a session have seen when they prove the secret to each other. */
struct proof_session {
	uint8_t client_nonce[PROOF_NONCE];
	uint8_t box_nonce[PROOF_NONCE];
	const char *job; /* NUL-terminated name; part of what is proved */
	uint32_t rank;
	uint32_t world;
	const uint8_t *channel; /* [PROOF_CHANNEL] the binding of the TLS connection that it goes over, or NULL */
	bool encrypt;           /* the job's payloads are encrypted: who strikes that from a Hello breaks its proof */
};

/* Fills nonce from the kernel's random source. 0 or -EIO. */
int proof_nonce(uint8_t nonce[PROOF_NONCE]);

/*
 * The MAC by which `from_box` (or the client) proves that it knows the job's secret. An empty secret is allowed:
 * whether a job may do without one is the caller's decision. 0 or -EIO (also for a secret of more than 1 MiB).
 */
int proof_control(
	const void *secret, size_t secret_bytes, const struct proof_session *s, bool from_box, uint8_t mac[PROOF_MAC]);

/* The session's key, known to both after the exchange. 0 or -EIO. */
int proof_session_key(const void *secret, size_t secret_bytes, const struct proof_session *s, uint8_t key[PROOF_KEY]);

/* The MAC that binds a data connection, with the box's fresh nonce, to its session and core. 0 or -EIO. */
int proof_data(const uint8_t key[PROOF_KEY], const uint8_t nonce[PROOF_NONCE], uint64_t session, uint32_t core,
	uint8_t mac[PROOF_MAC]);

/* Which data connection of a session: what both ends know of it when datagrams begin. No two are the same. */
struct proof_datagram {
	uint8_t nonce[PROOF_NONCE]; /* the box's, fresh */
	uint32_t core;
	uint32_t dial;        /* the worker's number for its attempt */
	uint32_t box, worker; /* what either end calls it, drawn by that end */
};

/*
 * The key of one direction of a data connection whose datagrams are sealed (seal.h): by HKDF of the session's key, with
 * the box's nonce as salt and all the rest in its info: so a nonce that came twice would not bring a key twice. 0 or
 * -EIO.
 */
int proof_datagram_key(
	const uint8_t key[PROOF_KEY], const struct proof_datagram *of, bool from_box, uint8_t out[PROOF_KEY]);

/* The key that a session's pushes are encrypted with (crypt.h), whatever connection carries them. 0 or -EIO. */
int proof_push_key(const uint8_t key[PROOF_KEY], uint8_t out[PROOF_KEY]);
/* The key that hides another one within the session; `salt` is fresh. 0 or -EIO. */
int proof_wrap_key(const uint8_t key[PROOF_KEY], const uint8_t salt[PROOF_NONCE], uint8_t out[PROOF_KEY]);

/*
 * What a box gives away at a place (an address, as bytes) of a connection of its own, to have it brought back: by a key
 * that nobody else has, so that who does not receive there cannot know it. Never 0. 0 or -EIO.
 */
int proof_way(const uint8_t key[PROOF_KEY], uint32_t connection, const uint8_t place[PROOF_PLACE], uint64_t *way);

/* Constant-time comparison. */
bool proof_equal(const uint8_t a[PROOF_MAC], const uint8_t b[PROOF_MAC]);

#endif
