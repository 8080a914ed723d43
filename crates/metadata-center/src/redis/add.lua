-- Charges a request without an owner; with `only_look` it only says what is there, and how many that were over it ended.
local id, endpoint, prefill, expire_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local room, max_endpoints, only_look = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'

local known = find_unowned(id, expire_ms)
if known then
  return { 'known', (charge_of(known)) }
end
if only_look then
  write_changes()
  return { 'unknown', tostring(-changed_requests) }
end
local answer = 'added'
local reserved = redis.call('HGET', RESERVED, id)
if not endpoints_fit({ endpoint }, max_endpoints) then
  answer = 'limit-endpoints'
elseif not reserved and not has_room(1, room) then
  answer = 'limit-requests'
else
  redis.call('HSET', UNOWNED, id, endpoint .. '|' .. prefill)
  redis.call('ZADD', CREATED, now, id)
  change(endpoint, 1, prefill)
  if reserved then
    end_reservation(id, reserved)
  end
end
write_changes()
return { answer }
