/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes the values of options that are more than a word. Any bytes may come in.
 */
#include "phub/control/config_values.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const value_transports[] = {
	"tcp",
	"shm",
	"udp",
	"dpdk",
#ifdef PHUB_VERBS
	"verbs",
#endif
	NULL,
};

#define VALUE_CPU_MAX    65535u
#define VALUE_LIST_BYTES 4096u

static const struct value_unit {
	const char *name;
	unsigned shift;
} value_units[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}, {"", 0}};

/* Digits at the start of text; *rest is behind them. */
static int value_read_digits(const char *text, uint64_t *out, const char **rest)
{
	uint64_t value = 0;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++) {
		if (value > (UINT64_MAX - (uint64_t)(*p - '0')) / 10)
			return -ERANGE;
		value = value * 10 + (uint64_t)(*p - '0');
	}
	if (p == text)
		return -EINVAL;
	*out = value;
	*rest = p;
	return 0;
}

int value_read_number(const char *text, uint64_t *out)
{
	const char *rest;
	uint64_t value;
	int rc = value_read_digits(text, &value, &rest);

	if (rc < 0)
		return rc;
	if (*rest)
		return -EINVAL;
	*out = value;
	return 0;
}

int value_read_bytes(const char *text, uint64_t *out)
{
	const char *rest;
	uint64_t value;
	int rc = value_read_digits(text, &value, &rest);

	if (rc < 0)
		return rc;
	while (*rest == ' ')
		rest++;
	for (unsigned i = 0; i < sizeof(value_units) / sizeof(value_units[0]); i++) {
		if (strcmp(rest, value_units[i].name) != 0)
			continue;
		if (value > UINT64_MAX >> value_units[i].shift)
			return -ERANGE;
		*out = value << value_units[i].shift;
		return 0;
	}
	return -EINVAL;
}

void value_write_bytes(uint64_t value, char *out, size_t bytes)
{
	unsigned i = 0;

	while (i < 4 && (value == 0 || value & ((UINT64_C(1) << value_units[i].shift) - 1)))
		i++;
	snprintf(out, bytes, "%" PRIu64 "%s", value >> value_units[i].shift, i < 4 ? value_units[i].name : "");
}

/* The next item of a comma-separated list, without blanks around it. 1, 0 at the end, or -EINVAL. */
static int value_next_item(const char **text, char *item, size_t bytes)
{
	const char *p = *text;
	size_t length;

	while (*p == ' ')
		p++;
	if (!*p)
		return 0;
	length = strcspn(p, ",");
	*text = p + length + (p[length] == ',');
	while (length > 0 && p[length - 1] == ' ')
		length--;
	if (length == 0 || length >= bytes)
		return -EINVAL;
	memcpy(item, p, length);
	item[length] = '\0';
	return 1;
}

int value_read_address(const char *item, struct config_listen *out)
{
	const char *host = item, *colon = strrchr(item, ':');
	uint64_t port;
	size_t length;
	int rc;

	if (!colon)
		return -EINVAL;
	rc = value_read_number(colon + 1, &port);
	if (rc < 0)
		return rc;
	if (port > UINT16_MAX)
		return -ERANGE;
	length = (size_t)(colon - item);
	if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
		host++;
		length -= 2;
	} else if (memchr(host, ':', length) || memchr(host, '[', length)) {
		return -EINVAL;
	}
	if (length == 0 || length >= sizeof(out->host))
		return -EINVAL;
	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)host[i]) && !strchr(".-_:%*", host[i]))
			return -EINVAL; /* no name or address has others, and brackets would not survive a dump */
	if (length == 1 && host[0] == '*')
		length = 0;
	memcpy(out->host, host, length);
	out->host[length] = '\0';
	out->port = (uint16_t)port;
	return 0;
}

int value_read_listen(struct config *config, const char *text, struct err *why)
{
	struct config_listen list[CONFIG_LISTEN_MAX];
	char item[CONFIG_HOST_BYTES + 16];
	unsigned count = 0;
	int rc;

	while ((rc = value_next_item(&text, item, sizeof(item))) > 0) {
		if (count == CONFIG_LISTEN_MAX)
			return err_set(why, -ERANGE, "more than %u addresses", CONFIG_LISTEN_MAX);
		rc = value_read_address(item, &list[count]);
		if (rc < 0)
			return err_set(why, rc, "see '%.64s'", item);
		count++;
	}
	if (rc < 0 || count == 0)
		return -EINVAL;
	memcpy(config->listen, list, count * sizeof(list[0]));
	config->listen_count = count;
	return 0;
}

void value_write_listen(const struct config *config, char *out, size_t bytes)
{
	size_t at = 0;

	for (unsigned i = 0; i < config->listen_count && at < bytes; i++) {
		const struct config_listen *l = &config->listen[i];
		bool six = strchr(l->host, ':') != NULL;

		at += (size_t)snprintf(out + at, bytes - at, "%s%s%s%s:%u", i ? ", " : "", six ? "[" : "",
			l->host[0] ? l->host : "*", six ? "]" : "", l->port);
	}
}

int value_read_ports(struct config *config, const char *text)
{
	uint64_t first, last;
	const char *rest;
	int rc;

	if (strcmp(text, "any") == 0) {
		config->port_first = config->port_last = 0;
		return 0;
	}
	rc = value_read_digits(text, &first, &rest);
	if (rc < 0)
		return rc;
	last = first;
	if (*rest == '-')
		rc = value_read_number(rest + 1, &last);
	else if (*rest)
		rc = -EINVAL;
	if (rc < 0)
		return rc;
	if (first < 1 || last < first || last > UINT16_MAX)
		return -ERANGE;
	config->port_first = (uint16_t)first;
	config->port_last = (uint16_t)last;
	return 0;
}

void value_write_ports(const struct config *config, char *out, size_t bytes)
{
	if (config->port_first == 0)
		snprintf(out, bytes, "any");
	else
		snprintf(out, bytes, "%u-%u", config->port_first, config->port_last);
}

static bool value_is_transport(const char *name)
{
	for (unsigned i = 0; value_transports[i]; i++)
		if (strcmp(value_transports[i], name) == 0)
			return true;
	return false;
}

int value_read_transports(struct config *config, const char *text, struct err *why)
{
	char list[CONFIG_TRANSPORTS_MAX][16], item[16];
	unsigned count = 0;
	int rc;

	while ((rc = value_next_item(&text, item, sizeof(item))) > 0) {
		if (strpbrk(item, "[]"))
			return err_set(why, -EINVAL, "a bracket without the other");
		if (!value_is_transport(item))
			return err_set(why, -EINVAL, "this build has no transport '%s'", item);
		for (unsigned i = 0; i < count; i++)
			if (strcmp(list[i], item) == 0)
				return err_set(why, -EINVAL, "'%s' is given twice", item);
		memcpy(list[count++], item, sizeof(item));
	}
	if (rc < 0 || count == 0)
		return -EINVAL;
	memcpy(config->transports, list, count * sizeof(list[0]));
	config->transport_count = count;
	return 0;
}

void value_write_transports(const struct config *config, char *out, size_t bytes)
{
	size_t at = 0;

	for (unsigned i = 0; i < config->transport_count && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", config->transports[i]);
}

static int value_read_cpu_range(const char *item, int *cpus, unsigned *count, struct err *why)
{
	uint64_t first, last;
	const char *rest;
	int rc = value_read_digits(item, &first, &rest);

	if (rc < 0)
		return rc;
	last = first;
	if (*rest == '-')
		rc = value_read_number(rest + 1, &last);
	else if (*rest)
		rc = -EINVAL;
	if (rc < 0)
		return rc;
	if (last < first || last > VALUE_CPU_MAX)
		return err_set(why, -ERANGE, "see '%s'", item);
	for (uint64_t cpu = first; cpu <= last; cpu++) {
		for (unsigned i = 0; i < *count; i++)
			if (cpus[i] == (int)cpu)
				return err_set(why, -EINVAL, "CPU %d is given twice", cpus[i]);
		if (*count == CONFIG_CORES_MAX)
			return err_set(why, -ERANGE, "more than %u CPUs", CONFIG_CORES_MAX);
		cpus[(*count)++] = (int)cpu;
	}
	return 0;
}

static int value_read_cpus(struct config *config, const char *text, struct err *why)
{
	char list[VALUE_LIST_BYTES], item[32];
	const char *p = list;
	size_t length = strlen(text);
	int cpus[CONFIG_CORES_MAX];
	unsigned count = 0;
	int rc;

	if (text[length - 1] != ']')
		return err_set(why, -EINVAL, "the closing bracket is missing");
	if (length >= sizeof(list))
		return -EINVAL;
	memcpy(list, text + 1, length - 2);
	list[length - 2] = '\0';
	while ((rc = value_next_item(&p, item, sizeof(item))) > 0) {
		rc = value_read_cpu_range(item, cpus, &count, why);
		if (rc < 0)
			return rc;
	}
	if (rc < 0 || count == 0)
		return -EINVAL;
	memcpy(config->cpus, cpus, count * sizeof(cpus[0]));
	config->core_count = count;
	config->cores_listed = true;
	return 0;
}

int value_read_cores(struct config *config, const char *text, struct err *why)
{
	uint64_t count = 0;
	int rc;

	if (text[0] == '[' && text[1])
		return value_read_cpus(config, text, why);
	if (strcmp(text, "auto") != 0) {
		rc = value_read_number(text, &count);
		if (rc < 0)
			return rc;
		if (count < 1 || count > CONFIG_CORES_MAX)
			return -ERANGE;
	}
	config->core_count = (unsigned)count;
	config->cores_listed = false;
	return 0;
}

void value_write_cores(const struct config *config, char *out, size_t bytes)
{
	size_t at;

	if (!config->cores_listed) {
		if (config->core_count)
			snprintf(out, bytes, "%u", config->core_count);
		else
			snprintf(out, bytes, "auto");
		return;
	}
	at = (size_t)snprintf(out, bytes, "[");
	for (unsigned i = 0; i < config->core_count && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%d", i ? ", " : "", config->cpus[i]);
	if (at < bytes)
		snprintf(out + at, bytes - at, "]");
}
