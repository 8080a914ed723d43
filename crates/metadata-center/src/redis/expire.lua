-- Ends reservations and owner-less charges that are over, forgets instances and endpoints that are unused for long: up
-- to 512 of each at a time. Says how many of each, whether there may be more, where the next look at the endpoints
-- begins, and whose leases are over, which `free` ends.
local expire_ms, cursor = tonumber(ARGV[1]), ARGV[2]
local MOST = 512

local reserved = redis.call('ZRANGEBYSCORE', RESERVED_UNTIL, '-inf', now, 'LIMIT', 0, MOST)
local created = redis.call('ZRANGEBYSCORE', CREATED, '-inf', now - expire_ms, 'LIMIT', 0, MOST)
local over = redis.call('ZRANGEBYSCORE', LEASE, '-inf', now, 'LIMIT', 0, MOST)
local silent = redis.call('ZRANGEBYSCORE', OVER, '-inf', now - expire_ms, 'LIMIT', 0, MOST)
local endpoints = redis.call('HSCAN', T, cursor, 'COUNT', MOST)

for _, id in ipairs(reserved) do
  local text = redis.call('HGET', RESERVED, id)
  if text then
    end_reservation(id, text)
  else
    redis.call('ZREM', RESERVED_UNTIL, id)
  end
end
for _, id in ipairs(created) do
  local text = redis.call('HGET', UNOWNED, id)
  if text then
    end_unowned(id, text)
  else
    redis.call('ZREM', CREATED, id)
  end
end
for _, instance in ipairs(silent) do
  forget_batches(instance, redis.call('HGET', EPOCH, instance) or '')
  redis.call('HDEL', EPOCH, instance)
  redis.call('ZREM', OVER, instance)
end
write_changes()
local unused = 0
for pair = 1, #endpoints[2], 2 do
  local endpoint = endpoints[2][pair]
  local is_unused = not changes[endpoint] and tonumber(endpoints[2][pair + 1]) <= now - expire_ms
  if is_unused and tonumber(redis.call('HGET', N, endpoint) or 0) == 0 then
    redis.call('HDEL', N, endpoint)
    redis.call('HDEL', P, endpoint)
    redis.call('HDEL', T, endpoint)
    unused = unused + 1
  end
end
local more = (#reserved == MOST or #created == MOST or #over == MOST or #silent == MOST) and 1 or 0
return { #reserved, #created, unused, more, endpoints[1], over }
