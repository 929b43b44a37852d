/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds files to a fuzzer's entry point without libFuzzer: so `make test` replays every corpus under any compiler.
 * Usage: replay_NAME FOLDER...; exits 77 when there is no file at all.
 */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define REPLAY_BYTES_MAX (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *whole = malloc(REPLAY_BYTES_MAX);
	int ret = -1;

	if (file && whole) {
		size_t size = fread(whole, 1, REPLAY_BYTES_MAX, file);
		uint8_t *data = malloc(size ? size : 1); /* exact, so that a sanitizer sees reads behind the end */

		for (size_t i = 0; data && i < size; i++)
			data[i] = whole[i];
		if (data && !ferror(file))
			ret = LLVMFuzzerTestOneInput(data, size);
		free(data);
	}
	free(whole);
	if (file)
		fclose(file);
	return ret;
}

static int replay_folder(const char *name, unsigned *count)
{
	DIR *folder = opendir(name);
	int ret = 0;

	if (!folder)
		return 0;
	for (struct dirent *entry = readdir(folder); entry && ret == 0; entry = readdir(folder)) {
		char path[PATH_MAX];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", name, entry->d_name);
		printf("%s\n", path);
		fflush(stdout); /* the last line names the input that crashed */
		ret = replay_file(path);
		(*count)++;
	}
	closedir(folder);
	return ret;
}

int main(int argc, char **argv)
{
	unsigned count = 0;

	for (int i = 1; i < argc; i++) {
		if (replay_folder(argv[i], &count) != 0)
			return 1;
	}
	if (count == 0) {
		puts("no corpus");
		return 77;
	}
	return 0;
}
