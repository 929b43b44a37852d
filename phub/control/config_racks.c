/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rack file as an option: which of its boxes this one is, and so which one is above it.
 */
#include "phub/control/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "phub/control/config_options.h"
#include "transport/stream.h"

#define CONFIG_RACKS_NAMES 200u /* so many bytes of names are told */

/* Where a box of the file serves, as an option has it. */
static void config_box_address(const struct rack_box *box, char *out, size_t bytes)
{
	snprintf(out, bytes, strchr(box->host, ':') ? "[%s]:%u" : "%s:%u", box->host, box->port);
}

static void config_box_names(const struct racks *r, char *out, size_t bytes)
{
	size_t at = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < r->box_count && at < bytes; i++) {
		if (bytes - at < RACKS_NAME_BYTES + 8) {
			snprintf(out + at, bytes - at, ", ...");
			return;
		}
		at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", r->boxes[i].name);
	}
}

bool config_is_here(const struct config *config, const char *host, uint16_t port)
{
	if (config->advertise[0])
		return config->advertise_at.port == port &&
		       (strcasecmp(config->advertise_at.host, host) == 0 ||
			       stream_host_is_heard(config->advertise_at.host, host) == 1);
	for (unsigned i = 0; i < config->listen_count; i++) {
		const struct config_listen *own = &config->listen[i];

		if (own->port == port &&
			(strcasecmp(own->host, host) == 0 || stream_host_is_heard(own->host, host) == 1))
			return true;
	}
	return false;
}

static int config_find_here(struct config *config, struct err *e)
{
	const struct racks *r = &config->racks;
	char names[CONFIG_RACKS_NAMES];
	const struct rack_box *found = NULL;

	config_box_names(r, names, sizeof(names));
	for (unsigned i = 0; i < r->box_count; i++) {
		const struct rack_box *box = &r->boxes[i];

		if (config->box[0] ? strcmp(box->name, config->box) != 0
				   : !config_is_here(config, box->host, box->port))
			continue;
		if (found) {
			err_set(e, -EINVAL,
				"racks: boxes '%s' and '%s' of %.200s are both at addresses of this one; set box to "
				"its "
				"name",
				found->name, box->name, config->racks_file);
			return config_at(config, "racks", "box", e);
		}
		found = box;
	}
	if (found) {
		config->racks_box = (unsigned)(found - r->boxes);
		return 0;
	}
	if (config->box[0])
		err_set(e, -EINVAL, "box: '%s' is no box of %.200s; allowed: %s", config->box, config->racks_file,
			names);
	else
		err_set(e, -EINVAL,
			"racks: no box of %.200s has the address %s; set box to the name of this one (%s), or correct "
			"its address there",
			config->racks_file, config->advertise[0] ? "of advertise" : "and port where this one listens",
			names);
	return config_at(config, config->box[0] ? "box" : "racks", "racks", e);
}

int config_finish_racks(struct config *config, struct err *e)
{
	struct err why;
	int rc;

	racks_fini(&config->racks);
	config->racks_uplink = false;
	config->sibling[0] = '\0';
	if (config->box[0] && !config->racks_file[0] && !config->etcd[0]) {
		err_set(e, -EINVAL, "box: '%s' without a rack file or etcd; set racks or etcd, or leave box empty",
			config->box);
		return config_at(config, "box", "box", e);
	}
	if (!config->racks_file[0])
		return 0;
	rc = racks_read(config->racks_file, &config->racks, &why);
	if (rc < 0) {
		err_set(e, rc, "racks: %s", why.text);
		return config_at(config, "racks", "racks", e);
	}
	rc = config_find_here(config, e);
	if (rc == 0 && config->racks.boxes[config->racks_box].sibling != RACKS_NONE)
		config_box_address(&config->racks.boxes[config->racks.boxes[config->racks_box].sibling],
			config->sibling, sizeof(config->sibling));
	if (rc < 0 || config->uplink[0] || config->racks_box == 0)
		return rc;
	snprintf(config->uplink, sizeof(config->uplink), "%s", config->tls == CONFIG_TLS_REQUIRE ? "phubs://" : "");
	config_box_address(&config->racks.boxes[0], config->uplink + strlen(config->uplink),
		sizeof(config->uplink) - strlen(config->uplink));
	config->racks_uplink = true;
	return 0;
}

void config_describe_racks(const struct config *config, char *out, size_t bytes)
{
	const struct racks *r = &config->racks;
	const struct rack_box *box = &r->boxes[config->racks_box];
	char above[sizeof(config->uplink) + 60] = "no box is above it", sibling[sizeof(config->sibling) + 40] = "";

	out[0] = '\0';
	if (r->box_count == 0)
		return;
	if (config->uplink[0])
		snprintf(above, sizeof(above), "the box above is %s%s", config->uplink,
			config->racks_uplink ? ", the first of the file" : "");
	if (config->sibling[0])
		snprintf(sibling, sizeof(sibling), "; its workers go to %s when it dies", config->sibling);
	snprintf(out, bytes, "box %s of rack %s in %.400s; %s%s", box->name, r->racks[box->rack].name,
		config->racks_file, above, sibling);
}
