/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/signal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct signal_said {
	struct signal_said *next;
	struct signal signal;
};

struct signal_reader signal_reader(const struct signal *s)
{
	return (struct signal_reader){s->bytes, s->length, s->length > SIGNAL_BYTES_MAX};
}

const uint8_t *signal_read(struct signal_reader *r, size_t bytes)
{
	static const uint8_t nothing[SIGNAL_BYTES_MAX];
	const uint8_t *at = r->at;

	if (r->broken || bytes > r->left) {
		r->broken = true;
		return nothing;
	}
	r->at += bytes;
	r->left -= bytes;
	return at;
}

bool signal_read_all(const struct signal_reader *r)
{
	return !r->broken && r->left == 0;
}

uint8_t *signal_write(struct signal *s, size_t bytes)
{
	uint8_t *at = s->bytes + s->length;

	assert(s->length + bytes <= sizeof(s->bytes));
	s->length += (uint32_t)bytes;
	return at;
}

void signal_write_handshake(struct signal *s, struct handshake *h)
{
	size_t bytes;
	const uint8_t *out = handshake_output(h, &bytes);

	memcpy(signal_write(s, bytes), out, bytes);
	handshake_sent(h, bytes);
}

struct signal *signal_list_add(struct signal_list *list, const struct signal *signal)
{
	struct signal_said *said = malloc(sizeof(*said));

	if (!said)
		return NULL;
	said->signal = *signal;
	said->next = NULL;
	if (list->first)
		list->last->next = said;
	else
		list->first = said;
	list->last = said;
	return &said->signal;
}

int signal_list_take(struct signal_list *list, struct signal *out)
{
	struct signal_said *said = list->first;

	if (!said)
		return -EAGAIN;
	*out = said->signal;
	list->first = said->next;
	free(said);
	return 0;
}

void signal_list_clear(struct signal_list *list)
{
	struct signal ignored;

	while (signal_list_take(list, &ignored) == 0)
		;
}
