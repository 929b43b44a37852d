/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int secret_read_file(const char *file, void *out, size_t bytes_max, size_t *length, struct err *e)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	const char *text = out;
	struct stat st;
	ssize_t got = 0;
	int rc = 0;

	if (fd < 0)
		return err_set(e, -errno, "%s: %s; the file must hold the secret", file, strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		rc = err_set(e, -EINVAL, "%s: not a file", file);
	else if (st.st_mode & S_IRWXO)
		rc = err_set(e, -EACCES, "%s: open to every user of this machine; type chmod 600 %s", file, file);
	else
		got = read(fd, out, bytes_max);
	if (got < 0)
		rc = err_set(e, -errno, "%s: %s", file, strerror(errno));
	close(fd);
	if (rc < 0)
		return rc;
	while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\r'))
		got--;
	*length = (size_t)got;
	return 0;
}
