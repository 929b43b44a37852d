/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An Ethernet segment that does what networks do to packets, by a seeded plan: a switch between TAP devices, which the
 * test puts into its namespaces. (tc's netem is a module that many kernels do not have, and follows no seed.)
 *
 * Usage: segment SEED NAME...    makes the devices and says "ready"; then reads lines:
 *   loss N, repeat N, reorder N, damage N    of a million frames, 0 at first. Every other damage is a bit, which
 *                                            checksums tell, every other one swaps two words of a UDP payload, which
 *                                            they do not
 *   cut I, join I                            the I-th device's cable
 *   deaf I, hear I                           the same for UDP alone: to and from the I-th device none goes on
 *   count                                    how many frames it saw, and did these things to
 * Each is answered by a line. Ends with its standard input.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
	PORTS_MAX = 16,
	FRAME_MAX = 9216,
	BURST = 64,     /* frames of a port in a row */
	HELD_MAX = 64,  /* frames that others overtake */
	HELD_SPAN = 40, /* so many, at most; or all that come before nothing comes */
	ETHERNET = 14,
	LINE_BYTES = 64,
};

enum fault { FAULT_LOSS, FAULT_REPEAT, FAULT_REORDER, FAULT_DAMAGE, FAULTS };

static const char *const fault_names[FAULTS] = {"loss", "repeat", "reorder", "damage"};

struct frame {
	uint8_t bytes[FRAME_MAX];
	size_t length;
	unsigned from, wait; /* frames that overtake it before it goes on */
};

struct segment {
	struct pollfd polls[PORTS_MAX + 1]; /* the last one is standard input */
	bool cut[PORTS_MAX], deaf[PORTS_MAX];
	uint8_t macs[PORTS_MAX][6]; /* whose frames came there last; zero: nobody's */
	unsigned ports, held_count;
	uint64_t random, seen;
	uint64_t per_million[FAULTS], done[FAULTS];
	struct frame frame;
	struct frame held[HELD_MAX];
};

/* splitmix64 */
static uint64_t segment_random(struct segment *s)
{
	uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static bool segment_happens(struct segment *s, enum fault what)
{
	bool yes = s->per_million[what] > 0 && segment_random(s) % 1000000 < s->per_million[what];

	s->done[what] += yes;
	return yes;
}

/* ---- frames ---- */

/* Where the payload of a UDP packet begins; 0: it is none. */
static size_t frame_udp(const struct frame *f)
{
	unsigned type = (unsigned)f->bytes[12] << 8 | f->bytes[13];

	if (type == 0x0800 && f->bytes[ETHERNET + 9] == 17)
		return ETHERNET + 20 + 8;
	if (type == 0x86dd && f->bytes[ETHERNET + 6] == 17)
		return ETHERNET + 40 + 8;
	return 0;
}

static void segment_deliver(struct segment *s, const struct frame *f)
{
	bool udp = frame_udp(f) > 0;
	int known = -1;

	for (unsigned i = 0; i < s->ports; i++)
		if (memcmp(s->macs[i], f->bytes, 6) == 0)
			known = (int)i;
	for (unsigned i = 0; i < s->ports; i++) {
		if (i == f->from || s->cut[i] || (known >= 0 && known != (int)i) || (udp && s->deaf[i]))
			continue;
		/* A device that is down takes none: so it is with cables. */
		if (write(s->polls[i].fd, f->bytes, f->length) < 0 && errno != EIO && errno != EAGAIN)
			perror("segment: write");
	}
}

static void segment_damage(struct segment *s, struct frame *f)
{
	size_t payload = frame_udp(f), words = payload && f->length > payload ? (f->length - payload) / 2 : 0;
	size_t at = ETHERNET + segment_random(s) % (f->length - ETHERNET);
	uint8_t *a = f->bytes, *b = f->bytes, kept[2];

	if (words < 2 || s->done[FAULT_DAMAGE] % 2) {
		f->bytes[at] ^= (uint8_t)(1u << segment_random(s) % 8);
		return;
	}
	a += payload + 2 * (segment_random(s) % words);
	b += payload + 2 * (segment_random(s) % words);
	memcpy(kept, a, 2);
	memcpy(a, b, 2);
	memcpy(b, kept, 2);
}

/* Those that were overtaken enough go on; all of them when nothing comes any more. */
static void segment_release(struct segment *s, bool all)
{
	unsigned left = 0;

	for (unsigned i = 0; i < s->held_count; i++) {
		if (all || s->held[i].wait-- == 0)
			segment_deliver(s, &s->held[i]);
		else
			s->held[left++] = s->held[i];
	}
	s->held_count = left;
}

static void segment_pass(struct segment *s, struct frame *f)
{
	s->seen++;
	if (f->length < ETHERNET + 20 || s->cut[f->from] || (s->deaf[f->from] && frame_udp(f)))
		return;
	memcpy(s->macs[f->from], f->bytes + 6, 6);
	if (segment_happens(s, FAULT_LOSS))
		return;
	if (segment_happens(s, FAULT_DAMAGE))
		segment_damage(s, f);
	if (s->held_count < HELD_MAX && segment_happens(s, FAULT_REORDER)) {
		f->wait = (unsigned)(segment_random(s) % HELD_SPAN);
		s->held[s->held_count++] = *f;
		return;
	}
	segment_deliver(s, f);
	if (segment_happens(s, FAULT_REPEAT))
		segment_deliver(s, f);
	segment_release(s, false);
}

static void segment_drain(struct segment *s, unsigned port)
{
	for (unsigned i = 0; i < BURST; i++) {
		ssize_t n = read(s->polls[port].fd, s->frame.bytes, sizeof(s->frame.bytes));

		if (n <= 0)
			return;
		s->frame.length = (size_t)n;
		s->frame.from = port;
		segment_pass(s, &s->frame);
	}
}

/* ---- what it is told ---- */

static bool segment_do(struct segment *s, const char *word, uint64_t number)
{
	for (unsigned i = 0; i < FAULTS; i++) {
		if (strcmp(word, fault_names[i]) != 0)
			continue;
		s->per_million[i] = number;
		return true;
	}
	if (number >= s->ports)
		return false;
	if (strcmp(word, "cut") == 0 || strcmp(word, "join") == 0)
		s->cut[number] = *word == 'c';
	else if (strcmp(word, "deaf") == 0 || strcmp(word, "hear") == 0)
		s->deaf[number] = *word == 'd';
	else
		return false;
	return true;
}

/* False: there is nobody any more. */
static bool segment_hear(struct segment *s)
{
	char line[LINE_BYTES], word[LINE_BYTES] = "";
	uint64_t number = 0;

	if (!fgets(line, sizeof(line), stdin))
		return false;
	sscanf(line, "%63s %" SCNu64, word, &number);
	if (strcmp(word, "count") == 0) {
		printf("{\"seen\": %" PRIu64, s->seen);
		for (unsigned i = 0; i < FAULTS; i++)
			printf(", \"%s\": %" PRIu64, fault_names[i], s->done[i]);
		puts("}");
	} else {
		puts(segment_do(s, word, number) ? "done" : "what?");
	}
	fflush(stdout);
	return true;
}

static int segment_device(const char *name)
{
	struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -1;
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	if (ioctl(fd, TUNSETIFF, &request) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool segment_run(struct segment *s)
{
	for (;;) {
		int n = poll(s->polls, s->ports + 1, s->held_count ? 1 : -1);

		if (n == 0)
			segment_release(s, true);
		for (unsigned i = 0; i < s->ports; i++)
			if (s->polls[i].revents)
				segment_drain(s, i);
		if (s->polls[s->ports].revents && !segment_hear(s))
			return true;
		if (n < 0 && errno != EINTR)
			return false;
	}
}

int main(int argc, char **argv)
{
	static struct segment s;

	if (argc < 4 || argc - 2 > PORTS_MAX) {
		fprintf(stderr, "usage: segment SEED NAME NAME...\n");
		return 2;
	}
	s.random = strtoull(argv[1], NULL, 10);
	for (int i = 2; i < argc; i++) {
		int fd = segment_device(argv[i]);

		if (fd < 0) {
			fprintf(stderr, "segment: %s: %s\n", argv[i], strerror(errno));
			return 1;
		}
		s.polls[s.ports++] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	setvbuf(stdin, NULL, _IONBF, 0);
	s.polls[s.ports] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
	puts("ready");
	fflush(stdout);
	return segment_run(&s) ? 0 : 1;
}
