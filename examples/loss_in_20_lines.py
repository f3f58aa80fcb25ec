"""The loss on random embeddings: what goes in, what comes out."""

import torch
import torch.nn.functional as F

import rince

torch.manual_seed(0)
queries = F.normalize(torch.randn(8, 32), dim=1).requires_grad_()
candidates = F.normalize(torch.randn(100, 32), dim=1)
query_classes, candidate_classes = torch.randint(0, 10, (8,)), torch.randint(0, 10, (100,))

ranks = rince.TableRanks.from_superclasses([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])  # ten classes in two superclasses
loss = rince.RankedInfoNCE.out_in((0.1, 0.225))  # rank 1: same class; rank 2: same superclass

output = loss.from_embeddings(queries, candidates, ranks(query_classes, candidate_classes))
output.total.backward()
print(f"loss {output.total:.4f}")
print(f"per rank {output.per_rank.tolist()}")
print(f"queries with a positive of rank 1 and 2: {output.queries_used.tolist()}")
