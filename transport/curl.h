/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcurl, loaded when somebody asks for it: it brings some thirty libraries along, for which whoever has no use for
 * etcd waits at no start.
 */
#ifndef PHUB_TRANSPORT_CURL_H
#define PHUB_TRANSPORT_CURL_H

#include <curl/curl.h>

#include "phub/base/err.h"

/* Those of its calls that are used, under their names without `curl_`. */
struct curl_calls {
	CURL *(*easy_init)(void);
	CURLcode (*easy_setopt)(CURL *easy, CURLoption option, ...);
	CURLcode (*easy_getinfo)(CURL *easy, CURLINFO info, ...);
	void (*easy_cleanup)(CURL *easy);
	const char *(*easy_strerror)(CURLcode code);
	struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
	void (*slist_free_all)(struct curl_slist *list);
	CURLM *(*multi_init)(void);
	CURLMcode (*multi_setopt)(CURLM *multi, CURLMoption option, ...);
	CURLMcode (*multi_add_handle)(CURLM *multi, CURL *easy);
	CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *easy);
	CURLMcode (*multi_socket_action)(CURLM *multi, curl_socket_t s, int events, int *running);
	CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
	CURLMcode (*multi_cleanup)(CURLM *multi);
};

/*
 * Any thread; blocks on the disk when it is the first. They stay valid until the process ends. 0, or -ELIBACC with what
 * to install in `e`.
 */
int curl_load(const struct curl_calls **out, struct err *e);

#endif
