/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By libcap-ng, which knows in which order the kernel wants it. Threads that a library started before lose their
 * capabilities with the change of user too: only this thread asks to keep any.
 */
#include "phub/control/privilege.h"

#include <cap-ng.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct privilege_ids {
	bool change;
	uid_t uid;
	gid_t gid;
};

/* What a transport does after start that the kernel grants to few. */
static const struct privilege_need {
	const char *transport;
	unsigned capability;
} privilege_needs[] = {
	{"verbs", CAP_IPC_LOCK},                       /* pins the memory of jobs, whatever `ulimit -l` */
	{"dpdk", CAP_IPC_LOCK}, {"dpdk", CAP_NET_RAW}, /* sockets of af_packet and af_xdp, queues of mlx5 */
	{"dpdk", CAP_NET_ADMIN},                       /* and what is undone at the end: programs, promiscuous mode */
};

static int privilege_find(const struct config *config, struct privilege_ids *ids, struct err *e)
{
	const struct passwd *user = config->user[0] ? getpwnam(config->user) : NULL;
	const struct group *group = config->group[0] ? getgrnam(config->group) : NULL;

	if (config->user[0] && !user)
		return err_set(e, -ENOENT, "user: there is no '%s'; create it: useradd --system %s", config->user,
			config->user);
	if (config->group[0] && !config->user[0])
		return err_set(e, -EINVAL, "group: '%s' goes with a user; set user too", config->group);
	if (config->group[0] && !group)
		return err_set(e, -ENOENT, "group: there is no '%s'; create it: groupadd --system %s", config->group,
			config->group);
	ids->uid = user ? user->pw_uid : geteuid();
	ids->gid = group ? group->gr_gid : user ? user->pw_gid : getegid();
	ids->change = ids->uid != geteuid() || ids->gid != getegid();
	return 0;
}

int privilege_check(const struct config *config, struct err *e)
{
	struct privilege_ids ids;
	int rc = privilege_find(config, &ids, e);

	if (rc == 0 && ids.change && geteuid() != 0)
		return err_set(e, -EPERM, "user: only root may become '%s'; start phubd as root, or as that user",
			config->user);
	return rc;
}

static bool privilege_wants(const struct config *config, unsigned capability)
{
	for (size_t i = 0; i < sizeof(privilege_needs) / sizeof(privilege_needs[0]); i++)
		if (privilege_needs[i].capability == capability && config_uses(config, privilege_needs[i].transport))
			return true;
	return false;
}

/* Of what this process has, that which its transports need: how many. */
static unsigned privilege_select(const struct config *config)
{
	bool keep[CAP_LAST_CAP + 1];
	unsigned count = 0;

	capng_get_caps_process();
	for (unsigned i = 0; i <= CAP_LAST_CAP; i++)
		keep[i] = privilege_wants(config, i) && capng_have_capability(CAPNG_PERMITTED, i);
	capng_clear(CAPNG_SELECT_ALL);
	for (unsigned i = 0; i <= CAP_LAST_CAP; i++) {
		if (!keep[i])
			continue;
		capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, i);
		count++;
	}
	return count;
}

static void privilege_describe(bool all, unsigned count, char *out, size_t bytes)
{
	const struct passwd *user = getpwuid(geteuid());
	char *names = !all && count ? capng_print_caps_text(CAPNG_PRINT_BUFFER, CAPNG_PERMITTED) : NULL;

	snprintf(out, bytes, "user %s (uid %u), keeps %s", user ? user->pw_name : "?", (unsigned)geteuid(),
		all     ? "all that root may"
		: names ? names
			: "no capabilities");
	free(names);
}

int privilege_drop(const struct config *config, char *out, size_t bytes, struct err *e)
{
	struct privilege_ids ids;
	int rc = privilege_check(config, e);
	bool stays_root;
	unsigned count;

	if (rc == 0)
		rc = privilege_find(config, &ids, e);
	if (rc < 0)
		return rc;
	stays_root = ids.uid == 0;
	if (!stays_root) {
		count = privilege_select(config);
		rc = ids.change
			     ? capng_change_id((int)ids.uid, (int)ids.gid, CAPNG_INIT_SUPP_GRP | CAPNG_CLEAR_BOUNDING)
			     : capng_apply(CAPNG_SELECT_CAPS);
		if (rc < 0)
			return err_set(e, -EPERM,
				"user: cannot become uid %u with %u capabilities (libcap-ng says %d); does a container "
				"or "
				"a service manager forbid it?",
				(unsigned)ids.uid, count, rc);
	} else {
		count = 0;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_set(e, -errno, "no_new_privs: %s", strerror(errno));
	/* What cannot be undone is looked at once more: a box that only seems to have given it up is worse than none.
	 */
	if (!stays_root && (setuid(0) == 0 || geteuid() != ids.uid || getegid() != ids.gid))
		return err_set(e, -EPERM, "user: this process could become root again");
	privilege_describe(stays_root, count, out, bytes);
	return 0;
}
