/* open-addressing counter for hashed n-grams; gcc -O1 -shared -fPIC -o libngram.so ngram.c */
#include <stdint.h>
#include <stdlib.h>
typedef struct { uint32_t mask; uint32_t used; uint64_t *key; uint32_t *cnt; } table;
table *ng_new(int bits) {
    table *t = malloc(sizeof *t);
    t->mask = (1u << bits) - 1; t->used = 0;
    t->key = calloc(t->mask + 1, 8); t->cnt = calloc(t->mask + 1, 4);
    return t;
}
static uint64_t mix(uint64_t x) { x ^= x >> 31; x *= 0x9E3779B97F4A7C15ull; x ^= x >> 29; return x ? x : 1; }
static uint32_t slot(table *t, uint64_t k) {
    uint32_t i = (uint32_t)k & t->mask;
    while (t->key[i] != 0 && t->key[i] != k)
        i = (i + 1) & t->mask;
    return i;
}
/* adds all n-grams of the row, returns how many were seen before */
int ng_add(table *t, const int64_t *ids, int len, int n) {
    int seen = 0;
    for (int p = 0; p + n <= len; p++) {
        uint64_t h = 1469598103934665603ull;
        for (int j = 0; j < n; j++) h = (h ^ (uint64_t)ids[p + j]) * 1099511628211ull;
        h = mix(h);
        uint32_t i = slot(t, h);
        if (t->key[i]) seen++; else { t->key[i] = h; t->used++; }
        t->cnt[i]++;
    }
    return seen;
}
uint32_t ng_used(table *t) { return t->used; }
