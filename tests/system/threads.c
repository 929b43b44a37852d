/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: which programs create threads. The first pthread_create() of a process appends one line to the file
 * that PHUB_TEST_THREADS names: the program, by its path in the build folder that this library is from. Programs from
 * elsewhere are not written down. tests/run.py compares the lines with tests/threads.txt.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { THREADS_PATH_BYTES = 4096, THREADS_LINE_BYTES = 512 };

typedef int threads_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* Seen from outside, to come before libc's. */
__attribute__((visibility("default"))) int pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);

static const char threads_name[] = "/tests/system/threads.so";

/* The path of this program below the build folder, or NULL. */
static const char *threads_program(char *exe, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", exe, bytes - 1);
	size_t build_bytes;
	Dl_info here;

	if (length <= 0 || !dladdr((void *)threads_name, &here) || strlen(here.dli_fname) < sizeof(threads_name))
		return NULL;
	exe[length] = '\0';
	build_bytes = strlen(here.dli_fname) - (sizeof(threads_name) - 1);
	if (strncmp(exe, here.dli_fname, build_bytes) != 0 || exe[build_bytes] != '/')
		return NULL;
	return exe + build_bytes + 1;
}

/* Lower-case words, as commands are called; file names and options hold other characters. */
static bool threads_is_word(const char *text)
{
	return text[0] >= 'a' && text[0] <= 'z' && text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == '\0';
}

/* The words that choose what a program does: the file of tests/units, and the command of phub. */
static unsigned threads_count_words(const char *program, const char *first)
{
	static const char *const families[] = {"bench", "checkpoint", "scout", "topo"};

	if (strcmp(program, "tests/units") == 0)
		return 1;
	if (strcmp(program, "phub") != 0)
		return 0;
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
		if (strcmp(first, families[i]) == 0)
			return 2;
	return 1;
}

static void threads_write_line(int fd, const char *program)
{
	char line[THREADS_LINE_BYTES], arguments[THREADS_LINE_BYTES] = "";
	int from = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = from < 0 ? 0 : read(from, arguments, sizeof(arguments) - 1);
	const char *end = arguments + (length > 0 ? length : 0), *word = arguments + strlen(arguments) + 1;
	unsigned words = word < end ? threads_count_words(program, word) : 0;
	size_t at = (size_t)snprintf(line, sizeof(line), "%.200s", program);

	for (; words > 0 && word < end && threads_is_word(word); words--, word += strlen(word) + 1)
		at += (size_t)snprintf(line + at, sizeof(line) - at, " %.100s", word);
	line[at++] = '\n';
	(void)!write(fd, line, at); /* one call: other processes append to the same file */
	if (from >= 0)
		close(from);
}

static void threads_tell(void)
{
	const char *path = getenv("PHUB_TEST_THREADS"), *program;
	char exe[THREADS_PATH_BYTES];
	int fd;

	program = path ? threads_program(exe, sizeof(exe)) : NULL;
	fd = program ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
	if (fd < 0)
		return;
	threads_write_line(fd, program);
	close(fd);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
	static atomic_bool told;
	threads_create *next = (threads_create *)dlsym(RTLD_NEXT, "pthread_create");

	if (!atomic_exchange_explicit(&told, true, memory_order_relaxed))
		threads_tell();
	return next(thread, attr, start, argument);
}
