-- Deletes a cluster that has neither endpoints nor leases; says whether it has neither.
if redis.call('HLEN', N) > 0 or redis.call('ZCARD', LEASE) > 0 then
  return 0
end
redis.call('DEL', N, P, T, COUNT, LEASE, EPOCH, OVER, SUM, SEQ, RESERVED_UNTIL, RESERVED, CREATED, UNOWNED, LOG)
return 1
