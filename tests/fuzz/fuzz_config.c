/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes as a config file. What is refused names the file; what is accepted obeys its bounds, and its dump is
 * read back to the same dump.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static char *fuzz_dump(const struct config *config)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	fuzz_require(out != NULL);
	config_dump(config, out);
	fclose(out);
	return text;
}

static void fuzz_check_bounds(const struct config *config)
{
	fuzz_require(config->listen_count >= 1 && config->listen_count <= CONFIG_LISTEN_MAX);
	fuzz_require(config->transport_count >= 1 && config->transport_count <= CONFIG_TRANSPORTS_MAX);
	fuzz_require(config->core_count <= CONFIG_CORES_MAX);
	fuzz_require(config->window >= 2 && config->window <= 4096);
	fuzz_require((config->chunk_bytes & (config->chunk_bytes - 1)) == 0);
	for (unsigned i = 0; i < config->job_count; i++)
		fuzz_require(config_job_name_valid(config->jobs[i].name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config config, again;
	struct err e = {0};
	char *first, *second;

	config_init(&config);
	if (config_parse(&config, data, size, "fuzz.yaml", &e) < 0) {
		fuzz_require(strncmp(e.text, "fuzz.yaml:", 10) == 0);
		config_fini(&config);
		return 0;
	}
	fuzz_check_bounds(&config);
	first = fuzz_dump(&config);
	config_init(&again);
	fuzz_require(config_parse(&again, first, strlen(first), "dump", &e) == 0);
	second = fuzz_dump(&again);
	fuzz_require(strcmp(first, second) == 0);
	free(first);
	free(second);
	config_fini(&config);
	config_fini(&again);
	return 0;
}
