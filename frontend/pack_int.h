/* pack_int.h -- a model with pieces: what onnx_pack.c and onnx_template.c share. */
#ifndef EFFICC_PACK_INT_H
#define EFFICC_PACK_INT_H

#include "onnx_int.h"

typedef struct fe_piece { /* the contents of a tensor that are not in memory */
    fe_hole hole;         /* hole.param NULL: bytes of source */
    const fe_tensor *source;
    Onnx__TensorProto *proto;
    bool beside; /* it stands in the file beside the model */
    uint64_t at; /* where it came to lie in its file */
} fe_piece;

struct fe_writer {
    ProtobufCBuffer base; /* must be first: protobuf-c hands it back to append() */
    fe_model *m;
    fe_piece *pieces;
    int npiece, cap;
    fe_sink *sink;
    uint64_t at; /* bytes of the finished file so far */
    bool ok;
    uint8_t *copy; /* for pieces of files */
};
void fe_pack_init(fe_writer *, fe_model *, int most_pieces);
/* Makes the next piece the contents of t, whatever they were. */
fe_piece *fe_pack_piece(fe_writer *, Onnx__TensorProto *t, uint64_t bytes);

#endif
