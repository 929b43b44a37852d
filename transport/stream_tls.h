/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3, and no other version, around a control session's stream. The one that comes out is a stream like any other:
 * it never blocks, has no thread and no timer of its own, and holds at most a few records. Neither tickets nor early
 * data are spoken, so that nothing of one connection is of any use on another.
 * Control thread of the box; in libphub whoever drives progress().
 *
 * Once it has handshaken, stream->channel is RFC 9266's binding (tls-exporter), which the proof of the secret covers
 * (proof.h): a proof cannot be carried from one connection to another. A failure is -EPROTO or -EACCES with the reason
 * in stream->why: -EACCES when the box is not the one that was to be met.
 */
#ifndef PHUB_TRANSPORT_STREAM_TLS_H
#define PHUB_TRANSPORT_STREAM_TLS_H

#include <stdbool.h>

#include "phub/base/err.h"
#include "transport/stream.h"

enum { STREAM_TLS_PIN_BYTES = 32, STREAM_TLS_PIN_TEXT = 2 * STREAM_TLS_PIN_BYTES + 1 };

/* What all connections of one end have in common. Constant once made; a stream keeps what it needs of it. */
struct stream_tls;

/*
 * The box's end: certificate (with its chain) and private key from PEM files. Reads them at once; may block on them. 0,
 * or a negative errno with the file at fault in `e`: -EACCES when others than its owner may open the key.
 */
int stream_tls_box(const char *cert, const char *key, struct stream_tls **out, struct err *e);

/*
 * The worker's end. `ca`: a PEM file with the certificates by one of which the box's has to be signed; it must then
 * bear the name or address that was dialled. `pin`: the SHA-256 of the box's certificate as 64 hexadecimal digits,
 * which may have colons between them and "sha256:" before; without `ca` name and dates are not looked at. Either may be
 * NULL, not both (-EINVAL); with both, both must hold. 0, or a negative errno with what is wrong in `e`.
 */
int stream_tls_worker(const char *ca, const char *pin, struct stream_tls **out, struct err *e);

void stream_tls_close(struct stream_tls *tls);

/* The pin of a box's certificate, in small letters without colons. */
void stream_tls_pin(const struct stream_tls *tls, char out[STREAM_TLS_PIN_TEXT]);

/*
 * The worker's side of a connection to `host`. It never falls back to plain. `inner` is the new stream's from then on,
 * and is closed where there is none: -ENOMEM.
 */
int stream_tls_dial(const struct stream_tls *tls, const char *host, struct stream *inner, struct stream **out);

/*
 * The box's side: the first three bytes tell TLS from a plain session (no frame of one begins like a ClientHello),
 * which then goes on as if it had not been wrapped: whether that may be is the caller's to decide, by stream->sealed.
 * Of `inner` as above.
 */
int stream_tls_accept(const struct stream_tls *tls, struct stream *inner, struct stream **out);

#endif
