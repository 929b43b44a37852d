/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rack file, written: by phub topo probe.
 */
#include "topology/racks.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Plain where YAML cannot take it for something else, else in quotes. */
static void racks_put_name(FILE *out, const char *name)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	if (strspn(name, plain) == strlen(name) && name[0] != '-' && name[0] != '.') {
		fputs(name, out);
		return;
	}
	fputc('"', out);
	for (; *name; name++) {
		if ((unsigned char)*name < ' ' || *name == 127)
			fprintf(out, "\\x%02x", (unsigned char)*name);
		else
			fprintf(out, *name == '\\' || *name == '"' ? "\\%c" : "%c", *name);
	}
	fputc('"', out);
}

static void racks_put_rate(FILE *out, const char *key, double bytes_s)
{
	double bits = bytes_s * 8;
	const char *unit = bits >= 1e9 ? "Gbit" : bits >= 1e6 ? "Mbit" : "Kbit";

	fprintf(out, "%s: %.9g%s", key, bits / (bits >= 1e9 ? 1e9 : bits >= 1e6 ? 1e6 : 1e3), unit);
}

static void racks_put_time(FILE *out, const char *key, double seconds)
{
	if (seconds > 0)
		fprintf(out, "%s: %.9gus\n", key, seconds * 1e6);
}

static void racks_put_note(FILE *out, const char *indent, const char *text)
{
	while (text && *text) {
		size_t bytes = strcspn(text, "\n");

		fprintf(out, "%s# %.*s\n", indent, (int)bytes, text);
		text += bytes + (text[bytes] == '\n');
	}
}

static const char *racks_note(const char *(*note)(void *arg, unsigned index), void *arg, unsigned index)
{
	return note ? note(arg, index) : NULL;
}

static void racks_put_box(const struct racks *r, unsigned index, FILE *out)
{
	const struct rack_box *box = &r->boxes[index];
	char address[RACKS_HOST_BYTES + 10];

	fputs("      - name: ", out);
	racks_put_name(out, box->name);
	snprintf(address, sizeof(address), strchr(box->host, ':') ? "[%s]:%u" : "%s:%u", box->host, box->port);
	fputs("\n        address: ", out);
	racks_put_name(out, address);
	racks_put_rate(out, "\n        rate", box->rate_bytes_s);
	if (box->cores)
		fprintf(out, "\n        cores: %u", box->cores);
	if (box->sibling != RACKS_NONE) {
		fputs("\n        sibling: ", out);
		racks_put_name(out, r->boxes[box->sibling].name);
	}
	fputc('\n', out);
}

static void racks_put_rack(const struct racks *r, unsigned rack, const struct racks_notes *n, FILE *out)
{
	unsigned hosts = 0;

	racks_put_note(out, "  ", racks_note(n->rack, n->arg, rack));
	fputs("  - name: ", out);
	racks_put_name(out, r->racks[rack].name);
	fputc('\n', out);
	if (r->racks[rack].uplink_bytes_s > 0) {
		racks_put_rate(out, "    uplink", r->racks[rack].uplink_bytes_s);
		fputc('\n', out);
	}
	racks_put_time(out, "    latency", r->racks[rack].latency_s);
	fputs("    boxes:\n", out);
	for (unsigned i = 0; i < r->box_count; i++) {
		if (r->boxes[i].rack != rack)
			continue;
		racks_put_note(out, "      ", racks_note(n->box, n->arg, i));
		racks_put_box(r, i, out);
	}
	for (unsigned i = 0; i < r->host_count; i++) {
		const struct rack_host *host = &r->hosts[i];

		if (host->rack != rack)
			continue;
		if (hosts++ == 0)
			fputs("    hosts:\n", out);
		racks_put_note(out, "      ", racks_note(n->host, n->arg, i));
		fputs("      - name: ", out);
		racks_put_name(out, host->name);
		racks_put_rate(out, "\n        rate", host->rate_bytes_s);
		fprintf(out, "\n        workers: %u\n", host->workers);
	}
}

static bool racks_has_rate(double bytes_s)
{
	return bytes_s >= RACKS_RATE_MIN && bytes_s <= RACKS_RATE_MAX;
}

static bool racks_have_rates(const struct racks *r)
{
	bool all = true;

	for (unsigned i = 0; i < r->rack_count; i++)
		all = all && (r->racks[i].uplink_bytes_s <= 0 || racks_has_rate(r->racks[i].uplink_bytes_s));
	for (unsigned i = 0; i < r->box_count; i++)
		all = all && racks_has_rate(r->boxes[i].rate_bytes_s);
	for (unsigned i = 0; i < r->host_count; i++)
		all = all && racks_has_rate(r->hosts[i].rate_bytes_s);
	return all;
}

int racks_write(const struct racks *r, const struct racks_notes *notes, FILE *out)
{
	static const struct racks_notes none;
	const struct racks_notes *n = notes ? notes : &none;

	if (!racks_have_rates(r))
		return -ERANGE;
	racks_put_note(out, "", n->head);
	racks_put_time(out, "latency", r->latency_s);
	fputs("racks:\n", out);
	for (unsigned i = 0; i < r->rack_count; i++)
		racks_put_rack(r, i, n, out);
	return fflush(out) != 0 || ferror(out) ? -EIO : 0;
}
