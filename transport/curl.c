/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds libcurl and the calls that are used of it.
 */
#include "transport/curl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static struct {
	pthread_mutex_t lock;
	bool there;
	struct curl_calls calls;
} curl_loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define CURL_CALL(name)                                          \
	{                                                        \
		"curl_" #name, offsetof(struct curl_calls, name) \
	}

static const struct {
	const char *name;
	size_t offset;
} curl_names[] = {
	CURL_CALL(easy_init),
	CURL_CALL(easy_setopt),
	CURL_CALL(easy_getinfo),
	CURL_CALL(easy_cleanup),
	CURL_CALL(easy_strerror),
	CURL_CALL(slist_append),
	CURL_CALL(slist_free_all),
	CURL_CALL(multi_init),
	CURL_CALL(multi_setopt),
	CURL_CALL(multi_add_handle),
	CURL_CALL(multi_remove_handle),
	CURL_CALL(multi_socket_action),
	CURL_CALL(multi_info_read),
	CURL_CALL(multi_cleanup),
};

/* Debian's libcurl with OpenSSL, else that with GnuTLS, which has the same calls. */
static void *curl_find(void)
{
	void *handle = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);

	return handle ? handle : dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
}

static int curl_take(struct err *e)
{
	CURLcode (*global_init)(long flags);
	void *handle = curl_find(), *call;

	if (!handle)
		return err_set(
			e, -ELIBACC, "etcd needs libcurl, which is not installed: on Debian `apt install libcurl4`");
	for (size_t i = 0; i < sizeof(curl_names) / sizeof(curl_names[0]); i++) {
		call = dlsym(handle, curl_names[i].name);
		if (!call)
			return err_set(e, -ELIBACC, "etcd: libcurl has no %s(); install one of version 7.68 or later",
				curl_names[i].name);
		memcpy((char *)&curl_loaded.calls + curl_names[i].offset, &call, sizeof(call));
	}
	/* Never unloaded: what it sets up for TLS is for the whole process. */
	call = dlsym(handle, "curl_global_init");
	memcpy(&global_init, &call, sizeof(call));
	if (!call || global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(e, -ELIBACC, "etcd: libcurl does not start");
	return 0;
}

int curl_load(const struct curl_calls **out, struct err *e)
{
	int rc = 0;

	pthread_mutex_lock(&curl_loaded.lock);
	if (!curl_loaded.there)
		rc = curl_take(e);
	if (rc == 0) {
		curl_loaded.there = true;
		*out = &curl_loaded.calls;
	}
	pthread_mutex_unlock(&curl_loaded.lock);
	return rc;
}
