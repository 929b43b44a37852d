#include "phub/control/checkpoint.h"
#include <errno.h>
int checkpoint_write(const struct checkpoint_place *p, const struct checkpoint_table *t, const struct snapshot *s, struct checkpoint_progress *g, struct err *e){(void)p;(void)t;(void)s;(void)g;return err_set(e,-EIO,"stub");}
int checkpoint_read_table(const struct checkpoint_place *p, uint64_t r, struct checkpoint_table *o, struct err *e){(void)p;(void)r;(void)o;return err_set(e,-ENOENT,"stub");}
void checkpoint_table_fini(struct checkpoint_table *t){(void)t;}
int checkpoint_read_chunks(const struct checkpoint_place *p, const struct checkpoint_table *t, int (*k)(void *, uint32_t, const void *, uint64_t), void *a, uint64_t *r, struct err *e){(void)p;(void)t;(void)k;(void)a;(void)r;return err_set(e,-EIO,"stub");}
int checkpoint_prune(const struct checkpoint_place *p, unsigned k, struct err *e){(void)p;(void)k;(void)e;return 0;}
void checkpoint_pace_init(struct checkpoint_pace *p, double o){(void)p;(void)o;}
void checkpoint_pace_round(struct checkpoint_pace *p, double s, bool b){(void)p;(void)s;(void)b;}
void checkpoint_pace_written(struct checkpoint_pace *p, double s){(void)p;(void)s;}
