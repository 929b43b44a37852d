/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports of DPDK as the configuration names them, and what a process needs for them. Any thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/dpdk.h"

static int spec_number(const char *text, unsigned long most, unsigned long *out)
{
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	*out = strtoul(text, &end, 10);
	return *end || errno || *out > most ? -EINVAL : 0;
}

static int spec_ip(const char *text, uint32_t *out)
{
	struct in_addr ip;

	if (inet_pton(AF_INET, text, &ip) != 1)
		return -EINVAL;
	*out = ntohl(ip.s_addr);
	return *out >> 24 == 0 || *out >> 28 >= 0xe ? -EINVAL : 0; /* this network; multicast and above */
}

static int spec_mac(const char *text, uint8_t out[6])
{
	unsigned int b[6];
	int end = 0;

	if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%n", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &end) != 6 || text[end])
		return -EINVAL;
	for (unsigned i = 0; i < 6; i++)
		out[i] = (uint8_t)b[i];
	return out[0] & 1 ? -EINVAL : 0; /* a group's */
}

/* "10.0.0.1/24" */
static int spec_address(char *text, struct dpdk_spec *out)
{
	char *slash = strchr(text, '/');
	unsigned long prefix;

	if (!slash || spec_number(slash + 1, 32, &prefix) < 0 || prefix == 0)
		return -EINVAL;
	*slash = '\0';
	out->prefix = (uint8_t)prefix;
	return spec_ip(text, &out->ip);
}

static int spec_option(char *text, struct dpdk_spec *out)
{
	unsigned long number = 0;
	int rc = -EINVAL;

	if (strncmp(text, "gw=", 3) == 0)
		return spec_ip(text + 3, &out->gateway);
	if (strncmp(text, "mac=", 4) == 0)
		return spec_mac(text + 4, out->mac);
	if (strncmp(text, "mtu=", 4) == 0) {
		rc = spec_number(text + 4, 65535, &number);
		out->mtu = (uint16_t)number;
		return number < 576 ? -EINVAL : rc; /* RFC 791: what every link has */
	}
	if (strncmp(text, "port=", 5) == 0) {
		rc = spec_number(text + 5, 65535, &number);
		out->port = (uint16_t)number;
		return number == 0 ? -EINVAL : rc;
	}
	return strchr(text, '/') ? spec_address(text, out) : -EINVAL;
}

static uint32_t spec_mask(const struct dpdk_spec *spec)
{
	return UINT32_MAX << (32 - spec->prefix);
}

/* Is this no host's, but the network's own address, or that of all its hosts? Networks of two have neither (RFC 3021).
 */
static bool spec_is_nobody(const struct dpdk_spec *spec, uint32_t ip)
{
	uint32_t host = ip & ~spec_mask(spec);

	return spec->prefix < 31 && (host == 0 || host == ~spec_mask(spec));
}

/* Addresses that are well-formed, and cannot work. */
static int spec_check(const char *text, const struct dpdk_spec *spec, struct err *e)
{
	if (spec->gateway && !spec->ip)
		return err_set(e, -EINVAL, "DPDK port \"%s\": a gateway needs an address, as 10.0.0.1/24", text);
	if (!spec->ip)
		return 0;
	if (spec->ip >> 24 == 127)
		return err_set(
			e, -EINVAL, "DPDK port \"%s\": 127.0.0.0/8 never leaves a host; name another address", text);
	if (spec_is_nobody(spec, spec->ip))
		return err_set(e, -EINVAL,
			"DPDK port \"%s\": that is the address of its network, or of all hosts in it; name a host's",
			text);
	if (!spec->gateway)
		return 0;
	if (spec->gateway == spec->ip)
		return err_set(e, -EINVAL, "DPDK port \"%s\": its gateway is itself; name the router's address", text);
	if ((spec->gateway ^ spec->ip) & spec_mask(spec) || spec_is_nobody(spec, spec->gateway))
		return err_set(e, -EINVAL,
			"DPDK port \"%s\": its gateway is no host of its network; name the router's address in there",
			text);
	return 0;
}

int dpdk_spec_parse(const char *text, struct dpdk_spec *out, struct err *e)
{
	struct dpdk_spec spec = {0};
	const char *at = strchr(text, '@');
	size_t bytes = at ? (size_t)(at - text) : strlen(text);
	char options[128], *save = NULL;

	if (bytes == 0 || bytes >= sizeof(spec.device))
		return err_set(e, -EINVAL,
			"DPDK port \"%s\": name a device, as in \"0000:3b:00.0@10.0.0.1/24\" or "
			"\"net_af_packet0,iface=eth1@10.0.0.1/24\"",
			text);
	memcpy(spec.device, text, bytes);
	if (strpbrk(text, " \t;"))
		return err_set(e, -EINVAL, "DPDK port \"%s\": blanks in it; ports have semicolons between them", text);
	if (at && (size_t)snprintf(options, sizeof(options), "%s", at + 1) >= sizeof(options))
		return err_set(e, -EINVAL, "DPDK port \"%s\": too long", text);
	for (char *word = at ? strtok_r(options, ",", &save) : NULL; word; word = strtok_r(NULL, ",", &save)) {
		char said[sizeof(options)];

		snprintf(said, sizeof(said), "%s", word);
		if (spec.ip && strchr(word, '/'))
			return err_set(e, -EINVAL, "DPDK port \"%s\": \"%s\" is its second address; a port has one",
				text, said);
		if (spec_option(word, &spec) < 0)
			return err_set(e, -EINVAL,
				"DPDK port \"%s\": \"%s\" is none of ADDRESS/PREFIX, gw=ADDRESS, mac=MAC, mtu=BYTES, "
				"port=NUMBER",
				text, said);
	}
	if (spec_check(text, &spec, e) < 0)
		return -EINVAL;
	*out = spec;
	return 0;
}

/* Is this port another one's, or in its network? Which of them a datagram leaves by would be chance. */
static int spec_meets(const struct dpdk_spec *a, const struct dpdk_spec *b, struct err *e)
{
	if (strcmp(a->device, b->device) == 0)
		return err_set(e, -EINVAL, "DPDK ports: \"%s\" is named twice", a->device);
	if (!a->ip || !b->ip)
		return 0;
	if (a->ip == b->ip)
		return err_set(e, -EINVAL, "DPDK ports: \"%s\" and \"%s\" have one address; each needs its own",
			a->device, b->device);
	return (a->ip ^ b->ip) & spec_mask(a) & spec_mask(b) ? 0
							     : err_set(e, -EINVAL,
								       "DPDK ports: \"%s\" and \"%s\" are in one "
								       "network; each is to be in a network of its own",
								       a->device, b->device);
}

int dpdk_specs_parse(const char *text, struct dpdk_spec out[DPDK_PORTS_MAX], struct err *e)
{
	struct dpdk_spec specs[DPDK_PORTS_MAX];
	unsigned count = 0;

	for (const char *at = text + strspn(text, "; "); *at; at += strspn(at, "; ")) {
		size_t bytes = strcspn(at, ";"), length = bytes;
		char one[2 * DPDK_DEVICE_MAX];
		int rc;

		if (count == DPDK_PORTS_MAX)
			return err_set(e, -EINVAL, "DPDK ports: more than %d", DPDK_PORTS_MAX);
		while (length > 0 && at[length - 1] == ' ')
			length--;
		snprintf(one, sizeof(one), "%.*s", (int)(length < sizeof(one) ? length : sizeof(one)), at);
		rc = dpdk_spec_parse(one, &specs[count], e);
		if (rc < 0)
			return rc;
		for (unsigned i = 0; i < count; i++)
			if (spec_meets(&specs[i], &specs[count], e) < 0)
				return -EINVAL;
		count++;
		at += bytes;
	}
	if (count == 0)
		return err_set(e, -EINVAL, "DPDK ports: there is none in \"%s\"", text);
	memcpy(out, specs, count * sizeof(*out));
	return (int)count;
}

/* The effective capabilities, as bits; all, where the kernel does not say. */
static unsigned long long spec_capabilities(void)
{
	unsigned long long has = ~0ULL;
	char line[256];
	FILE *file = fopen("/proc/self/status", "re");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "CapEff: %llx", &has) == 1)
			break;
	if (file)
		fclose(file);
	return has;
}

bool dpdk_lacks(const char *device, char out[DPDK_LACKS_BYTES])
{
	enum { NET_ADMIN = 1 << 0, NET_RAW = 1 << 1, SYS_ADMIN = 1 << 2 };
	static const struct {
		const char *name;
		unsigned bit;
	} rights[] = {{"CAP_NET_ADMIN", CAP_NET_ADMIN}, {"CAP_NET_RAW", CAP_NET_RAW}, {"CAP_SYS_ADMIN", CAP_SYS_ADMIN}};
	static const struct {
		const char *driver;
		unsigned needs;
	} kinds[] = {
		{"net_af_packet", NET_RAW}, {"net_af_xdp", NET_ADMIN | NET_RAW | SYS_ADMIN}, {"net_tap", NET_ADMIN}};
	unsigned long long has = spec_capabilities();
	unsigned lacks = 0;
	size_t at = 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strncmp(device, kinds[i].driver, strlen(kinds[i].driver)) == 0)
			lacks = kinds[i].needs;
	out[0] = '\0';
	for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++)
		if (lacks >> i & 1 && !(has >> rights[i].bit & 1))
			at += (size_t)snprintf(out + at, DPDK_LACKS_BYTES - at, "%s%s", at ? ", " : "", rights[i].name);
	return at > 0;
}

const char *dpdk_drop_name(enum dpdk_drop why)
{
	static const char *const names[DPDK_DROPS] = {
		[DPDK_RUNT] = "runt",
		[DPDK_FOREIGN] = "foreign",
		[DPDK_HEADER] = "header",
		[DPDK_FRAGMENT] = "fragment",
		[DPDK_ELSEWHERE] = "elsewhere",
		[DPDK_PROTOCOL] = "protocol",
		[DPDK_NO_QUEUE] = "no_queue",
		[DPDK_DAMAGED] = "damaged",
		[DPDK_SCATTERED] = "scattered",
		[DPDK_STEER_FULL] = "steer_full",
	};

	return (unsigned)why < DPDK_DROPS ? names[why] : "?";
}
