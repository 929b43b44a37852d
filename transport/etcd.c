/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to etcd over libcurl's multi interface. Its sockets are in an epoll of ours, which is itself one descriptor for
 * the owner to sleep on.
 */
#include "transport/etcd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "transport/curl.h"
#include "transport/etcd_text.h"

enum {
	ETCD_EVENTS = 16,
	ETCD_CONNECT_MS = 1000,
	ETCD_PROBE_S = 5, /* a watch may be silent for ever, its peer may not */
};

struct etcd {
	struct etcd_config config;
	const struct curl_calls *curl;
	CURLM *multi;
	int epoll_fd;
	uint64_t now_ns, due_ns;
	unsigned at; /* the URL that answered last, or is next */
	char token[ETCD_TOKEN_BYTES];
};

/* ---- libcurl's side ---- */

static int etcd_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
	struct etcd *etcd = arg;
	struct epoll_event event = {.data.fd = fd};

	(void)easy;
	(void)known;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(etcd->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
	if (epoll_ctl(etcd->epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0)
		return epoll_ctl(etcd->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -1 : 0;
	return 0;
}

static int etcd_on_timer(CURLM *multi, long timeout_ms, void *arg)
{
	struct etcd *etcd = arg;

	(void)multi;
	etcd->due_ns = clock_deadline_ns(etcd->now_ns, timeout_ms);
	return 0;
}

/* Takes none of it when it is too long: then the transfer ends. */
static size_t etcd_on_bytes(char *from, size_t size, size_t count, void *arg)
{
	struct etcd_call *call = arg;
	size_t bytes = size * count, room = call->room ? call->room : 4096;
	char *larger;

	if (call->taken) {
		memmove(call->answer, call->answer + call->taken, call->bytes - call->taken);
		call->bytes -= call->taken;
		call->taken = 0;
	}
	call->began = call->began || !call->logs_in;
	if (bytes > ETCD_ANSWER_MAX - call->bytes) {
		call->too_long = true;
		return 0;
	}
	while (room < call->bytes + bytes + 1)
		room *= 2;
	if (room > call->room) {
		larger = realloc(call->answer, room);
		if (!larger)
			return 0;
		call->answer = larger;
		call->room = room;
	}
	memcpy(call->answer + call->bytes, from, bytes);
	call->bytes += bytes;
	call->answer[call->bytes] = '\0';
	return bytes;
}

int etcd_open(const struct etcd_config *config, struct etcd **out, struct err *e)
{
	struct etcd *etcd = calloc(1, sizeof(*etcd));
	int rc;

	if (!etcd)
		return err_set(e, -ENOMEM, "no memory for etcd");
	etcd->config = *config;
	etcd->due_ns = CLOCK_NEVER;
	etcd->epoll_fd = -1;
	if (!config->timeout_ms)
		etcd->config.timeout_ms = ETCD_TIMEOUT_MS;
	if (!config->user[0])
		snprintf(etcd->token, sizeof(etcd->token), "%s", config->secret);
	rc = curl_load(&etcd->curl, e);
	if (rc == 0) {
		etcd->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		etcd->multi = etcd->curl->multi_init();
		if (etcd->epoll_fd < 0 || !etcd->multi)
			rc = err_set(e, -ENOMEM, "no memory or descriptors for etcd; raise `ulimit -n`");
	}
	if (rc < 0) {
		etcd_close(etcd);
		return rc;
	}
	etcd->curl->multi_setopt(etcd->multi, CURLMOPT_SOCKETFUNCTION, etcd_on_socket);
	etcd->curl->multi_setopt(etcd->multi, CURLMOPT_SOCKETDATA, etcd);
	etcd->curl->multi_setopt(etcd->multi, CURLMOPT_TIMERFUNCTION, etcd_on_timer);
	etcd->curl->multi_setopt(etcd->multi, CURLMOPT_TIMERDATA, etcd);
	*out = etcd;
	return 0;
}

void etcd_close(struct etcd *etcd)
{
	if (!etcd)
		return;
	if (etcd->multi)
		etcd->curl->multi_cleanup(etcd->multi);
	if (etcd->epoll_fd >= 0)
		close(etcd->epoll_fd);
	explicit_bzero(etcd, sizeof(*etcd));
	free(etcd);
}

int etcd_fd(const struct etcd *etcd)
{
	return etcd->epoll_fd;
}

uint64_t etcd_next(const struct etcd *etcd)
{
	return etcd->due_ns;
}

const char *etcd_url(const struct etcd *etcd)
{
	return etcd->config.urls[etcd->at];
}

/* ---- one try of a call ---- */

static void call_fail(struct etcd_call *call, int status, int code, const char *text)
{
	call->state = ETCD_FAILED;
	call->status = status;
	err_set(&call->why, code, "etcd %s: %s", etcd_url(call->etcd), text);
}

/* Takes back what is with libcurl. */
static void call_drop(struct etcd_call *call)
{
	const struct curl_calls *curl = call->etcd->curl;

	if (call->easy) {
		curl->multi_remove_handle(call->etcd->multi, call->easy);
		curl->easy_cleanup(call->easy);
	}
	curl->slist_free_all(call->headers);
	call->easy = NULL;
	call->headers = NULL;
}

static void call_set_headers(struct etcd_call *call)
{
	const struct curl_calls *curl = call->etcd->curl;
	char line[ETCD_TOKEN_BYTES + 32];
	struct curl_slist *more;

	call->headers = curl->slist_append(NULL, "Content-Type: application/json");
	more = call->headers ? curl->slist_append(call->headers, "Expect:") : NULL;
	if (more && call->etcd->token[0] && !call->logs_in) {
		snprintf(line, sizeof(line), "Authorization: %s", call->etcd->token);
		curl->slist_append(call->headers, line);
		explicit_bzero(line, sizeof(line));
	}
}

static void call_set_options(struct etcd_call *call)
{
	const struct etcd_config *config = &call->etcd->config;
	const struct curl_calls *curl = call->etcd->curl;
	CURL *easy = call->easy;
	char url[ETCD_URL_BYTES + 64];

	snprintf(url, sizeof(url), "%s%s", etcd_url(call->etcd), call->logs_in ? "/v3/auth/authenticate" : call->path);
	curl->easy_setopt(easy, CURLOPT_URL, url);
	curl->easy_setopt(easy, CURLOPT_POSTFIELDS, call->logs_in ? call->login : call->request);
	curl->easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, etcd_on_bytes);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, call);
	curl->easy_setopt(easy, CURLOPT_PRIVATE, call);
	curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, call->trouble);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
	/* A call that is given up while a name is looked up would wait for the thread that does; so that ends by
	 * itself. */
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
	curl->easy_setopt(easy, CURLOPT_NOPROXY, "*"); /* the rack's etcd is not behind the site's proxy */
#if LIBCURL_VERSION_NUM >= 0x075500
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)ETCD_CONNECT_MS);
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, (long)ETCD_PROBE_S);
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, (long)ETCD_PROBE_S);
	if (!call->stream || call->logs_in)
		curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)config->timeout_ms);
	if (config->ca[0])
		curl->easy_setopt(easy, CURLOPT_CAINFO, config->ca);
}

static void call_try(struct etcd_call *call)
{
	struct etcd *etcd = call->etcd;

	call->logs_in = etcd->config.user[0] && !etcd->token[0] && !call->logged_in;
	if (call->logs_in && !call->login)
		call->login = etcd_text_authenticate(etcd->config.user, etcd->config.secret);
	if (call->logs_in && !call->login) {
		call_fail(call, -1, -EINVAL, "user or password is no text, or there is no memory for them");
		return;
	}
	call->bytes = call->taken = 0;
	call->began = call->too_long = false;
	call->trouble[0] = '\0';
	call->easy = etcd->curl->easy_init();
	call_set_headers(call);
	if (!call->easy || !call->headers) {
		call_drop(call);
		call_fail(call, -1, -ENOMEM, "no memory");
		return;
	}
	call_set_options(call);
	if (etcd->curl->multi_add_handle(etcd->multi, call->easy) != CURLM_OK) {
		call_drop(call);
		call_fail(call, -1, -ENOMEM, "libcurl takes no request");
	}
}

/* Nobody answered, or one that is of no use now: the next one is asked, if there is another. A watch that has begun
 * ends: what was seen since is the owner's to find out. */
static void call_try_next(struct etcd_call *call, int status, int code, const char *text)
{
	struct etcd *etcd = call->etcd;

	call_fail(call, status, code, text);
	etcd->at = (etcd->at + 1) % etcd->config.url_count;
	if (++call->tries >= etcd->config.url_count || (call->stream && call->began))
		return;
	call->state = ETCD_RUNNING;
	call_try(call);
}

/* ---- how a try ended ---- */

#define ETCD_WANTS_USER                                                                                       \
	"; it wants a user and a password: give a file with user:password (a box: etcd_secret_file; others: " \
	"PHUB_ETCD_SECRET_FILE)"

static void call_heard_token(struct etcd_call *call)
{
	struct etcd *etcd = call->etcd;
	struct err e;

	call->logged_in = true;
	if (etcd_text_read_token(call->answer, call->bytes, etcd->token, sizeof(etcd->token), &e) < 0)
		call_fail(call, ETCD_UNKNOWN, -EPROTO, e.text);
	else
		call_try(call);
}

/* HTTP's codes follow from etcd's, but for what stands before it. */
static void call_refused(struct etcd_call *call, long http)
{
	struct etcd *etcd = call->etcd;
	char why[200], text[560];
	int status = etcd_text_read_error(call->answer ? call->answer : "", call->bytes, why, sizeof(why));

	snprintf(text, sizeof(text), "%s%s%s%s (HTTP %ld)%s", call->logs_in ? "user '" : "",
		call->logs_in ? etcd->config.user : "", call->logs_in ? "': " : "", why, http,
		strstr(why, "user name is empty") ? ETCD_WANTS_USER : "");
	if (call->logs_in && status == ETCD_PRECONDITION) {
		call->logged_in = true; /* it wants no password of anybody */
		call_try(call);
	} else if (status == ETCD_UNAUTHENTICATED && etcd->config.user[0] && !call->logged_in) {
		etcd->token[0] = '\0'; /* it has grown old */
		call_try(call);
	} else if (status == ETCD_UNAVAILABLE || http >= 500) {
		call_try_next(call, status, -EAGAIN, text);
	} else {
		call_fail(call, status, status == ETCD_NOT_FOUND ? -ENOENT : -EACCES, text);
	}
}

static void call_ended(struct etcd_call *call, CURLcode code)
{
	const struct curl_calls *curl = call->etcd->curl;
	char text[320];
	char *local = NULL;
	long http = 0;

	curl->easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
	if (curl->easy_getinfo(call->easy, CURLINFO_LOCAL_IP, &local) == CURLE_OK && local)
		snprintf(call->local, sizeof(call->local), "%s", local);
	snprintf(text, sizeof(text), "%s", call->trouble[0] ? call->trouble : curl->easy_strerror(code));
	call_drop(call);
	if (call->too_long) {
		snprintf(text, sizeof(text), "an answer of more than %u MiB", ETCD_ANSWER_MAX >> 20);
		call_fail(call, ETCD_UNKNOWN, -EMSGSIZE, text);
	} else if (code == CURLE_OK && http == 200 && call->logs_in) {
		call_heard_token(call);
	} else if (code == CURLE_OK && http == 200 && call->stream) {
		call_fail(call, ETCD_UNAVAILABLE, -ECONNRESET, "the watch has ended");
	} else if (code == CURLE_OK && http == 200) {
		call->state = ETCD_DONE;
	} else if (code == CURLE_OK) {
		call_refused(call, http);
	} else {
		call_try_next(call, -1, code == CURLE_OPERATION_TIMEDOUT ? -ETIMEDOUT : -ECONNREFUSED, text);
	}
}

void etcd_step(struct etcd *etcd, uint64_t now_ns)
{
	struct epoll_event events[ETCD_EVENTS];
	int count, running, left;
	CURLMsg *message;

	etcd->now_ns = now_ns;
	count = epoll_wait(etcd->epoll_fd, events, ETCD_EVENTS, 0);
	for (int i = 0; i < count; i++) {
		int what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
			   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
			   (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);

		etcd->curl->multi_socket_action(etcd->multi, events[i].data.fd, what, &running);
	}
	if (now_ns >= etcd->due_ns) {
		etcd->due_ns = CLOCK_NEVER;
		etcd->curl->multi_socket_action(etcd->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	while ((message = etcd->curl->multi_info_read(etcd->multi, &left))) {
		struct etcd_call *call = NULL;
		CURLcode code = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		etcd->curl->easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
		call_ended(call, code);
	}
}

/* ---- calls ---- */

static void etcd_start(
	struct etcd *etcd, struct etcd_call *call, const char *path, char *request, bool stream, uint64_t now_ns)
{
	*call = (struct etcd_call){
		.state = ETCD_RUNNING, .etcd = etcd, .path = path, .request = request, .stream = stream, .status = -1};
	etcd->now_ns = now_ns;
	if (request)
		call_try(call);
	else
		call_fail(call, -1, -ENOMEM, "no memory for a request");
}

void etcd_begin(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns)
{
	etcd_start(etcd, call, path, request, false, now_ns);
}

void etcd_begin_stream(struct etcd *etcd, struct etcd_call *call, const char *path, char *request, uint64_t now_ns)
{
	etcd_start(etcd, call, path, request, true, now_ns);
}

const char *etcd_line(struct etcd_call *call, size_t *bytes)
{
	char *line = call->answer ? call->answer + call->taken : NULL;
	char *end = line ? memchr(line, '\n', call->bytes - call->taken) : NULL;

	if (!end || call->logs_in)
		return NULL;
	*bytes = (size_t)(end - line);
	call->taken += *bytes + 1;
	return line;
}

void etcd_end(struct etcd_call *call)
{
	if (call->state == ETCD_IDLE)
		return;
	call_drop(call);
	free(call->answer);
	free(call->request);
	if (call->login)
		explicit_bzero(call->login, strlen(call->login));
	free(call->login);
	*call = (struct etcd_call){.state = ETCD_IDLE};
}
